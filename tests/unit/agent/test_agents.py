"""The life of an agent, turned by hand and by a thread."""

from __future__ import annotations

import threading

import pytest

from framepool.agent import AgentTerminated, BusySpin, CompositeAgent, Invoker, Runner, Sleeping, State


class Recorder:
    """An agent that writes down what was asked of it and does what a script says."""

    def __init__(self, *script: int | BaseException, role: str = "recorder") -> None:
        self.role = role
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.turned = threading.Event()
        self._script = list(script)

    def on_start(self) -> None:
        self.calls.append("start")
        self.threads.add(threading.get_ident())

    def do_work(self) -> int:
        self.calls.append("work")
        self.threads.add(threading.get_ident())
        self.turned.set()
        step = self._script.pop(0) if self._script else 0
        if isinstance(step, BaseException):
            raise step
        return step

    def on_close(self) -> None:
        self.calls.append("close")
        self.threads.add(threading.get_ident())


class FailingStart(Recorder):
    def on_start(self) -> None:
        super().on_start()
        raise OSError("no")


class Errors:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, role: str, error: BaseException) -> None:
        self.seen.append((role, str(error)))


def test_invoker_returns_the_work_done_and_closes_once() -> None:
    agent = Recorder(3, 0)
    invoker = Invoker(agent)
    assert invoker.invoke() == 0, "not started yet"
    invoker.start()
    invoker.start()
    assert [invoker.invoke(), invoker.invoke()] == [3, 0]
    invoker.close()
    invoker.close()
    assert invoker.invoke() == 0
    assert agent.calls == ["start", "work", "work", "close"]


def test_error_that_repeats_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    invoker = Invoker(Recorder(*(ValueError("bad") for _ in range(100)), ValueError("worse"), role="flood"))
    invoker.start()
    for _ in range(101):
        invoker.invoke()
    said = [record.getMessage() for record in caplog.records]
    assert said[:3] == [
        "agent flood: ValueError: bad",
        "agent flood: ValueError: bad (the 2. time)",
        "agent flood: ValueError: bad (the 4. time)",
    ]
    assert said[6:] == ["agent flood: ValueError: bad (the 64. time)", "agent flood: ValueError: worse"]
    assert invoker.errors == 101


def test_error_in_a_duty_cycle_is_reported_and_the_agent_lives_on() -> None:
    errors = Errors()
    invoker = Invoker(Recorder(ValueError("bad"), 5), on_error=errors)
    invoker.start()
    assert [invoker.invoke(), invoker.invoke()] == [0, 5]
    assert errors.seen == [("recorder", "bad")]
    assert invoker.errors == 1


def test_interrupt_is_not_swallowed() -> None:
    invoker = Invoker(Recorder(KeyboardInterrupt()), on_error=Errors())
    invoker.start()
    with pytest.raises(KeyboardInterrupt):
        invoker.invoke()


def test_agent_that_does_not_start_is_closed_and_raises() -> None:
    agent = FailingStart()
    invoker = Invoker(agent)
    with pytest.raises(OSError, match="no"):
        invoker.start()
    assert agent.calls == ["start", "close"]
    assert invoker.state is State.CLOSED


def test_agent_ends_itself() -> None:
    agent = Recorder(1, AgentTerminated())
    invoker = Invoker(agent, on_error=Errors())
    invoker.start()
    invoker.invoke()
    invoker.invoke()
    assert invoker.state is State.CLOSED
    assert agent.calls[-1] == "close"
    assert invoker.errors == 0


def test_unstarted_agent_is_not_asked_to_close() -> None:
    agent = Recorder()
    Invoker(agent).close()
    assert agent.calls == []


def test_runner_keeps_the_agent_on_one_thread() -> None:
    agent = Recorder()
    with Runner(agent, idle=Sleeping(0.0001)).start() as runner:
        assert agent.turned.wait(10)
        assert runner.statistics() == {"role": "recorder", "state": "running", "errors": 0}
    assert runner.state is State.CLOSED
    assert agent.calls[0] == "start"
    assert agent.calls[-1] == "close"
    assert agent.calls.count("close") == 1
    assert len(agent.threads) == 1
    assert threading.get_ident() not in agent.threads


def test_runner_survives_errors_and_counts_them() -> None:
    errors = Errors()
    agent = Recorder(ValueError("a"), ValueError("b"), AgentTerminated())
    runner = Runner(agent, idle=BusySpin(), on_error=errors).start()
    runner._thread.join(10)
    runner.close()
    assert errors.seen == [("recorder", "a"), ("recorder", "b")]
    assert runner.statistics()["errors"] == 2
    assert agent.calls[-1] == "close"


def test_runner_reports_an_agent_that_does_not_start() -> None:
    errors = Errors()
    agent = FailingStart()
    runner = Runner(agent, on_error=errors).start()
    runner._thread.join(10)
    assert errors.seen == [("recorder", "no")]
    assert runner.state is State.CLOSED
    runner.close()
    assert agent.calls == ["start", "close"]


def test_runner_closed_before_start_never_runs() -> None:
    agent = Recorder()
    runner = Runner(agent)
    runner.close()
    runner.start()
    runner._thread.join(10)
    assert agent.calls == []


def test_runner_closed_from_its_own_thread_does_not_deadlock() -> None:
    class Suicidal(Recorder):
        runner: Runner

        def do_work(self) -> int:
            self.runner.close()
            return super().do_work()

    agent = Suicidal()
    agent.runner = Runner(agent)
    agent.runner.start()
    agent.runner._thread.join(10)
    assert agent.runner.state is State.CLOSED
    assert agent.calls == ["start", "work", "close"]


def test_composite_gives_every_agent_its_turn_and_closes_backwards() -> None:
    errors = Errors()
    first, second = Recorder(ValueError("x"), 1, role="first"), Recorder(2, 3, role="second")
    both = CompositeAgent(first, second, on_error=errors)
    assert both.role == "first+second"
    both.on_start()
    assert [both.do_work(), both.do_work()] == [2, 4]
    order: list[str] = []
    first.on_close = lambda: order.append("first")  # type: ignore[method-assign]
    second.on_close = lambda: order.append("second")  # type: ignore[method-assign]
    both.on_close()
    assert order == ["second", "first"]
    assert errors.seen == [("first", "x")]


def test_composite_closes_the_started_when_one_does_not_start() -> None:
    first, second = Recorder(role="first"), FailingStart(role="second")
    with pytest.raises(OSError, match="no"):
        CompositeAgent(first, second).on_start()
    assert first.calls == ["start", "close"]
    assert second.calls == ["start", "close"]


def test_composite_ends_when_all_its_agents_have_ended() -> None:
    both = CompositeAgent(Recorder(AgentTerminated(), role="a"), Recorder(1, AgentTerminated(), role="b"))
    both.on_start()
    assert both.do_work() == 1
    with pytest.raises(AgentTerminated):
        both.do_work()


def test_composite_ends_with_the_agent_that_the_others_serve() -> None:
    main, servant = Recorder(1, AgentTerminated(), role="main"), Recorder(role="servant")
    both = CompositeAgent(main, servant, until=main)
    both.on_start()
    assert both.do_work() == 1
    with pytest.raises(AgentTerminated):
        both.do_work()


def test_runner_tells_whoever_waits_that_its_agent_has_started_or_why_not() -> None:
    agent = Recorder()
    with Runner(agent, idle=Sleeping()).start() as runner:
        runner.wait_started()
        assert agent.calls[0] == "start"
    failing = Runner(FailingStart(), on_error=Errors()).start()
    with pytest.raises(OSError, match="no"):
        failing.wait_started()
