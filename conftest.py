"""Fixtures every test may use: a private directory in shared memory, processes that always end, needs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import KIB, AeronSettings
from tests.support import hosts
from tests.support.directories import private_directory
from tests.support.processes import Processes

pytest_plugins = ("tests.conformance.plugin",)

# No wall-clock thresholds; in CI the same examples each time, elsewhere new ones.
settings.register_profile("framepool", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("framepool")

REQUIRED = frozenset(filter(None, os.environ.get("FRAMEPOOL_REQUIRE", "").split(",")))


@pytest.fixture
def base_dir() -> Iterator[Path]:
    """An empty directory of this test's own, in shared memory where there is some."""
    with private_directory() as path:
        yield path


@pytest.fixture
def media_driver(base_dir: Path) -> Iterator[MediaDriver]:
    """A media driver of this test's own, in this process, with short timeouts and small term buffers."""
    settings = AeronSettings(
        directory=str(base_dir / "aeron"), driver_timeout=5.0, keepalive_interval=0.1, ipc_term_length=64 * KIB
    )
    with MediaDriver(settings) as driver:
        yield driver


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Starts processes and sees that none outlives the test, stopped ones included."""
    running = Processes(sys.executable)
    yield running
    running.stop_all()


NEEDS: dict[str, Callable[[], str]] = {
    "root": lambda: "" if os.geteuid() == 0 else "run as root",
    "java": lambda: "" if shutil.which("java") else "install the package openjdk-17-jre-headless",
    "browser": lambda: "" if shutil.which("chromium") else "install the package chromium",
    "netns": hosts.missing,
    "valgrind": lambda: "" if shutil.which("valgrind") else "install the package valgrind",
}
"""What to do to have what a test needs; empty where it is there."""


SPEED = ("unit", "golden", "conformance", "model", "process", "examples", "spark", "network", "faults")
"""Directories of tests, the quickest first."""
TOGETHER = frozenset({"spark"})
"""Directories whose files share what is slow to start: where two processes run tests, one runs all of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What fails fast runs first."""
    tests = Path(__file__).parent / "tests"
    rank = {name: number for number, name in enumerate(SPEED)}
    items.sort(key=lambda item: rank.get(item.path.relative_to(tests).parts[0], len(SPEED)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file is run by one process, and so is a directory of `TOGETHER`."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            directory = path.split("/")[1]
            return directory if directory in TOGETHER else path

    return ByFile(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips by name what this machine lacks, or fails it where FRAMEPOOL_REQUIRE demands it."""
    for mark in item.iter_markers("requires"):
        for need in mark.args:
            remedy = NEEDS[need]()
            if remedy and need in REQUIRED:
                pytest.fail(f"FRAMEPOOL_REQUIRE demands {need}: {remedy}", pytrace=False)
            if remedy:
                pytest.skip(f"needs {need}: {remedy}")
