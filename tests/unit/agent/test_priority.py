"""Threads that stand back."""

from __future__ import annotations

import os
import threading

import pytest

from framepool.agent import Runner


class Onlooker:
    """Notes the policy of its own thread."""

    role = "onlooker"

    def __init__(self) -> None:
        self.policy: int | None = None

    def on_start(self) -> None:
        self.policy = os.sched_getscheduler(0)

    def do_work(self) -> int:
        return 0

    def on_close(self) -> None: ...


@pytest.mark.parametrize(("stands_back", "policy"), [(True, os.SCHED_BATCH), (False, os.SCHED_OTHER)])
def test_thread_of_a_runner_stands_back_if_asked(stands_back: bool, policy: int) -> None:
    agent = Onlooker()
    with Runner(agent, stands_back=stands_back).start() as runner:
        runner.wait_started()
    assert agent.policy == policy
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, "nobody else does"


def test_policy_that_somebody_chose_stays() -> None:
    agent = Onlooker()
    runner = Runner(agent, stands_back=True)

    def begin() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        runner.start()
        runner.wait_started()

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    runner.close()
    assert agent.policy == os.SCHED_IDLE
