"""Long-running work as agents: a duty cycle that somebody else turns.

An agent does a little work when asked and says how much it did; it never sleeps and never starts a thread. The
same agent runs in a thread of its own (`Runner`), in the caller's loop or in a test with a manual clock
(`Invoker`), after the pattern of Aeron's agents (Wire 15.16).
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from framepool.agent.idle import Backoff, IdleStrategy
from framepool.agent.priority import stand_back

log = logging.getLogger(__name__)


class Agent(Protocol):
    """One duty, turned from outside."""

    @property
    def role(self) -> str:
        """A short name for threads, logs and statistics."""

    def on_start(self) -> None:
        """Called once, on the thread that will turn the agent, before the first `do_work`."""

    def do_work(self) -> int:
        """Does what is due without waiting and returns how much that was: 0 lets the caller idle."""

    def on_close(self) -> None:
        """Called exactly once after the last `do_work`, also when `on_start` raised."""


class AgentTerminated(Exception):
    """Raised by `do_work` to end its own agent in good order."""


class State(enum.Enum):
    """The life of an agent; it only moves forward."""

    NEW = "new"
    RUNNING = "running"
    CLOSED = "closed"


ErrorHandler = Callable[[str, BaseException], None]


def log_error(role: str, error: BaseException) -> None:
    """The default error handler: a log entry with the traceback; of an error that comes again and again, the 1st, 2nd,
    4th, 8th …, because an agent may fail a thousand times a second."""
    said = f"{type(error).__name__}: {error}"
    last, times = _last_errors.get(role, ("", 0))
    times = times + 1 if said == last else 1
    _last_errors[role] = (said, times)
    if times.bit_count() == 1:
        log.error("agent %s: %s%s", role, said, f" (the {times}. time)" if times > 1 else "", exc_info=error)


_last_errors: dict[str, tuple[str, int]] = {}
"""What each role said last, and how often in a row."""


class Invoker:
    """Turns an agent from the caller's own loop.

    An error of `do_work` goes to `on_error` and the agent lives on; an error of `on_start` closes the agent and
    is raised, because an agent that did not start has nothing to live on.
    """

    def __init__(self, agent: Agent, *, on_error: ErrorHandler = log_error) -> None:
        self.agent = agent
        self.state = State.NEW
        self.errors = 0
        self._on_error = on_error

    def start(self) -> None:
        """Starts the agent; a second call does nothing."""
        if self.state is not State.NEW:
            return
        self.state = State.RUNNING
        try:
            self.agent.on_start()
        except BaseException:
            self.close()
            raise

    def invoke(self) -> int:
        """One duty cycle: the work done, 0 when the agent is not running."""
        if self.state is not State.RUNNING:
            return 0
        try:
            return self.agent.do_work()
        except AgentTerminated:
            self.close()
        except Exception as error:
            self.errors += 1
            self._on_error(self.agent.role, error)
        return 0

    def close(self) -> None:
        """Closes the agent once, started or not."""
        if self.state is State.CLOSED:
            return
        started = self.state is State.RUNNING
        self.state = State.CLOSED
        if not started:
            return
        try:
            self.agent.on_close()
        except Exception as error:
            self.errors += 1
            self._on_error(self.agent.role, error)


class Runner:
    """Gives an agent a thread of its own, which may stand back from those that move frames (`stand_back`)."""

    def __init__(
        self,
        agent: Agent,
        *,
        idle: IdleStrategy | None = None,
        on_error: ErrorHandler = log_error,
        stands_back: bool = False,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        """`wake` ends a long wait of the idle strategy, for who closes the runner."""
        self._invoker = Invoker(agent, on_error=on_error)
        self._stands_back = stands_back
        self._wake = wake
        self._idle = idle or Backoff()
        self._on_error = on_error
        self._stop = threading.Event()
        self._started = threading.Event()
        self._refusal: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"framepool-{agent.role}", daemon=True)

    @property
    def state(self) -> State:
        return self._invoker.state

    def start(self) -> Runner:
        """Starts the thread; `with Runner(agent).start(): …` closes it again."""
        self._thread.start()
        return self

    def wait_started(self) -> None:
        """Returns once `on_start` is done; raises what it raised."""
        self._started.wait()
        if self._refusal is not None:
            raise self._refusal

    def _run(self) -> None:
        if self._stands_back:
            stand_back()
        try:
            self._invoker.start()
        except BaseException as error:
            self._refusal = error
            self._on_error(self._invoker.agent.role, error)
            return
        finally:
            self._started.set()
        try:
            while not self._stop.is_set() and self._invoker.state is State.RUNNING:
                self._idle.idle(self._invoker.invoke())
        finally:
            self._invoker.close()

    def close(self, timeout: float = 10.0) -> None:
        """Ends the loop and waits for `on_close`; from the agent's own thread it only asks."""
        self._stop.set()
        self._wake()
        if not self._thread.is_alive():
            self._invoker.close()
            return
        if threading.current_thread() is self._thread:
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"agent {self._invoker.agent.role} did not end within {timeout} s")

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def statistics(self) -> dict[str, object]:
        """State and error count, for `statistics()` of whatever owns the runner."""
        return {
            "role": self._invoker.agent.role,
            "state": self._invoker.state.value,
            "errors": self._invoker.errors,
        }


class CompositeAgent:
    """Several agents turned as one; an error in one does not keep the others from their turn.

    It ends when all of them have, or as soon as the one that the others only serve has: `until`.
    """

    def __init__(self, *agents: Agent, until: Agent | None = None, on_error: ErrorHandler = log_error) -> None:
        self._invokers: Sequence[Invoker] = [Invoker(agent, on_error=on_error) for agent in agents]
        self._decisive = [invoker for invoker in self._invokers if until is None or invoker.agent is until]

    @property
    def role(self) -> str:
        return "+".join(invoker.agent.role for invoker in self._invokers)

    def on_start(self) -> None:
        for invoker in self._invokers:
            try:
                invoker.start()
            except BaseException:
                self.on_close()
                raise

    def do_work(self) -> int:
        work = sum(invoker.invoke() for invoker in self._invokers)
        if all(invoker.state is State.CLOSED for invoker in self._decisive):
            raise AgentTerminated
        return work

    def on_close(self) -> None:
        for invoker in reversed(self._invokers):
            invoker.close()
