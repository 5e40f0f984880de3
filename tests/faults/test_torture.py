"""The torture chamber: a short run finds nothing, and bugs on purpose are found, each by the rule that it breaks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from framepool.errors import RecordingError
from framepool.recorder.recording import Recording
from framepool.testing.cluster import STREAM, Cluster, cluster
from framepool.testing.evidence import journal_recording
from framepool.testing.faults import Fault, Kind, fingerprint, plan
from framepool.testing.history import check
from framepool.testing.journal import Event, Journal, read
from framepool.testing.nemesis import Nemesis
from framepool.testing.shortest import shortest
from framepool.testing.torture import GRACE_NS
from framepool.testing.violation import Violation

PATIENCE = 60.0
SERVERS = ("media-a", "driver-a", "witness-a")
Act = Callable[[Cluster], None]


def nothing(cluster: Cluster) -> None:
    pass


def kill_who_publishes(cluster: Cluster) -> None:
    """Once somebody does; it comes back, and somebody else may have its stream by then."""
    cameras = [cluster[name] for name in ("camera-0", "spare-0") if name in cluster]
    deadline = time.monotonic() + PATIENCE / 2
    while time.monotonic() < deadline:
        for camera in cameras:
            if camera.flows():
                camera.kill()
                time.sleep(0.3)
                cluster.restart(camera)
                return
        time.sleep(0.05)


def stop_the_recorder(cluster: Cluster) -> None:
    cluster["recorder"].signal(signal.SIGSTOP)
    time.sleep(1.0)
    cluster["recorder"].signal(signal.SIGCONT)


def swap_links(cluster: Cluster) -> None:
    """The file that eye-1 opens first is a link to elsewhere all the time: it is done by hand, once."""
    fault = Fault(number=0, round=0, at=0, kind=Kind.SYMLINK, target=str(STREAM), seconds=2.0, detail=0)
    Nemesis(cluster, [fault]).run()


MUTANTS: dict[str, tuple[str, Sequence[str], str, Act]] = {
    "skip_the_second_check": ("slow", (*SERVERS, "camera-0", "slow"), "torn", nothing),
    "reuse_an_epoch": ("driver-a", (*SERVERS, "camera-0"), "epoch fell", kill_who_publishes),
    "forget_the_revoke": ("driver-a", (*SERVERS, "camera-0", "spare-0"), "two producers", kill_who_publishes),
    "accept_a_foreign_stream": ("eye-1", (*SERVERS, "camera-0", "camera-1", "eye-1"), "wrong stream", nothing),
    "count_drops_wrongly": ("slow", (*SERVERS, "camera-0", "slow"), "gap not accounted for", nothing),
    "reuse_a_lease_id": ("driver-a", (*SERVERS, "camera-0", "camera-1"), "lease id reused", nothing),
    "forget_losses": ("recorder", (*SERVERS, "camera-0", "recorder"), "recording incomplete", stop_the_recorder),
    "follow_links": ("eye-1", (*SERVERS, "camera-0", "camera-1", "eye-1"), "mapped elsewhere", swap_links),
}
"""Who has the bug, who else is needed, the rule that it breaks, and what has to happen."""

SLOW = [pytest.mark.soak]
CASES = [pytest.param(name, id=name, marks=[] if name == "skip_the_second_check" else SLOW) for name in MUTANTS]


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="framepool-mutant-") as path:
        yield Path(path)


def events_of(tortured: Cluster) -> list[Event]:
    """What the journals say by now, and the recording."""
    tortured.look_at_maps()
    told = tortured.journals / "recording.journal"
    told.unlink(missing_ok=True)
    if "recorder" in tortured:
        with Journal(told, "recording") as journal:
            with contextlib.suppress(RecordingError):
                journal_recording(Recording(tortured.recording), journal)
    return read(tortured.events())


def found(tortured: Cluster, act: Act, rule: str | None) -> tuple[list[Event], list[Violation]]:
    """Lets things happen until the rule is broken, or for a while if none is to be."""
    deadline = time.monotonic() + (PATIENCE if rule else 5.0)
    while True:
        act(tortured)
        time.sleep(1.0)
        events = events_of(tortured)
        violations = check(events, grace_ns=GRACE_NS)
        if any(each.rule == rule for each in violations) or time.monotonic() > deadline:
            return events, violations


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", CASES)
def test_a_bug_on_purpose_is_caught_and_its_history_is_short(mutant: str, directory: Path) -> None:
    victim, members, rule, act = MUTANTS[mutant]
    with cluster(directory, alone=True) as tortured:
        tortured[victim].patch = f"tests.faults.torture_mutants:{mutant}"
        tortured.start(members)
        events, violations = found(tortured, act, rule)
    caught = [each for each in violations if each.rule == rule]
    assert caught, (violations[:3], [event for event in events if event.op != "published"][-5:])
    history = shortest(events, caught[0], grace_ns=GRACE_NS, patience=60)
    assert len(history) <= 12, history


@pytest.mark.timeout(180)
@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_same_without_the_bug_breaks_no_rule(mutant: str, directory: Path) -> None:
    _, members, _, act = MUTANTS[mutant]
    with cluster(directory, alone=True) as tortured:
        tortured.start(members)
        events, violations = found(tortured, act, None)
    assert violations == []
    assert any(event.op == "published" for event in events)


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_a_run_of_a_minute_does_what_its_seed_says_and_finds_nothing(tmp_path: Path) -> None:
    report, page = tmp_path / "report.json", tmp_path / "report.md"
    command = [sys.executable, "-m", "framepool", "torture", "--seconds", "60", "--seed", "7"]
    done = subprocess.run([*command, "--json", str(report), "--report", str(page)], capture_output=True, text=True)
    said = json.loads(report.read_text())
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert said["verdict"] == "no violation"
    planned = plan(7, 60)
    assert said["sequence"] == fingerprint(planned) == fingerprint(plan(7, 60))
    assert sum(said["faults"].values()) + sum(said["left_out"].values()) == len(planned)
    assert said["frames"]["received"] > 1_000
    assert "no violation" in page.read_text()


def marked(mark: str) -> set[int]:
    """Processes with this in their environment."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.add(int(path.parent.name))
    return found


@pytest.mark.timeout(180)
def test_a_run_that_is_told_to_end_leaves_nobody_behind(directory: Path) -> None:
    mark = f"FRAMEPOOL_TEST_MARK={directory}"
    command = [sys.executable, "-m", "framepool", "torture", "--alone", "--directory", str(directory / "journals")]
    environment = {**os.environ, "FRAMEPOOL_TEST_MARK": str(directory)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stderr is not None
        assert any("sequence" in line for line in run.stderr)
        children = marked(mark) - {run.pid}
        assert len(children) > 5
        os.kill(max(children), signal.SIGSTOP)
        run.terminate()
        run.communicate(timeout=60)
        assert run.returncode == 128 + signal.SIGTERM
    assert marked(mark) == set()


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    command = [sys.executable, "-m", "framepool", "torture", "--seconds", "1", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 2
    assert "is not empty" in done.stderr
