"""Events for other services cost no memory: not of Python's allocator, not of the C library's (Service 5)."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from framepool.agent import Invoker
from framepool.config import Config
from framepool.service import Event, Service
from framepool.transport.aeron import Client
from tests.support.processes import Processes
from tests.unit.service.conftest import Operator, wait_until

HERE = Path(__file__).parent
MESSAGES, BATCH = 100_000, 100


@pytest.mark.clause("S-5-04")
def test_a_hundred_thousand_events_for_others_cost_no_python_memory(
    client: Client, config: Config, operator: Operator
) -> None:
    """The highest use within a duty cycle that hears them is that of one that hears nothing."""
    service = Service(client, config, name="mine")
    invoker = Invoker(service)
    invoker.start()
    service._timers._heap.clear()  # its status is not what is measured
    wait_until(lambda: service._subscription.is_connected)  # before that it takes nothing out of the window
    message = Event(tag="service:other", key="set:rate", value=25, correlation_id=1).encode()

    def peak(count: int) -> int:
        for _ in range(count):
            operator.send(message)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in range(2):
            invoker.invoke()
        return tracemalloc.get_traced_memory()[1] - before

    gc.disable()
    tracemalloc.start()
    try:
        for count in (0, BATCH) * 20:
            peak(count)
        start, _ = tracemalloc.get_traced_memory()
        quiet = max(peak(0) for _ in range(100))
        # An event that costs memory costs it each time; other threads of the test run may take some now and then.
        busy = sorted(peak(BATCH) for _ in range(MESSAGES // BATCH))[-50]
        grown = tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()
        gc.enable()
    assert busy <= quiet
    assert grown < MESSAGES // 10, "nothing stays behind either"
    assert service.statistics()["filtered"] >= MESSAGES
    invoker.close()


@pytest.mark.clause("S-5-04")
def test_a_hundred_thousand_events_for_others_are_not_one_call_of_the_allocator(
    processes: Processes, base_dir: Path, tmp_path: Path
) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler: install the package gcc")
    counter = tmp_path / "count_allocations.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", str(HERE / "count_allocations.c"), "-o", str(counter)], check=True
    )
    env = {"LD_PRELOAD": str(counter), "PYTHONMALLOC": "malloc", "PYTHONPATH": os.getcwd()}
    worker = processes.start(str(HERE / "allocation_worker.py"), str(base_dir / "aeron"), env=env)
    said = json.loads(worker.wait_line("{", 60))
    assert worker.wait() == 0
    assert said["filtered"] == MESSAGES
    assert said["busy"] == said["quiet"]
