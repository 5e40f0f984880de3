"""The whole of it: a cluster, a nemesis with its plan, the journals of everybody, and the checker's verdict.

What a run leaves is a report: how many faults of each kind, how many frames were checked, what was found, and of each
finding the shortest history that shows it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from framepool.errors import RecordingError
from framepool.recorder.recording import Recording
from framepool.recorder.verify import verify
from framepool.testing.cluster import START_PATIENCE, Cluster, cluster
from framepool.testing.evidence import journal_recording, journal_replay
from framepool.testing.faults import Fault, Kind, fingerprint, plan
from framepool.testing.history import check, summary
from framepool.testing.journal import Event, Journal, read
from framepool.testing.nemesis import Exit, Nemesis
from framepool.testing.shortest import shortest
from framepool.testing.violation import Violation

GRACE_NS = 6_000_000_000
"""For how long a producer that is awake may go on before it hears that its lease was taken from it."""
SHOWN = 5
"""Violations whose shortest history is looked for."""


class Finding(msgspec.Struct, frozen=True):
    """A violation with the shortest history that shows it."""

    violation: Violation
    history: list[Event]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run."""

    verdict: str
    seed: int
    seconds: float
    """As asked for."""
    elapsed: float
    sequence: str
    """The fingerprint of the plan: the same seed gives the same."""
    planned: int
    faults: dict[str, int]
    """Done, by kind."""
    left_out: dict[str, int]
    frames: dict[str, int]
    """Events that were checked, by kind."""
    processes: int
    """Started, each time counted."""
    exits: list[Exit]
    """Processes that ended by themselves."""
    stuck: list[str]
    """Who did not find back, or did not end."""
    violations: int
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        return self.verdict == "no violation"


def run(
    seconds: float,
    seed: int,
    *,
    directory: Path | None = None,
    alone: bool = False,
    kinds: Sequence[Kind] = tuple(Kind),
    tell: Callable[[str], None] = lambda text: None,
) -> Report:
    """Tortures a cluster for so many seconds. Journals and recording are in `directory` afterwards, if one is given."""
    faults = plan(seed, seconds, kinds)
    with contextlib.ExitStack() as opened:
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="framepool-torture-"))
            opened.callback(shutil.rmtree, directory, ignore_errors=True)
        began = time.monotonic()
        with cluster(directory, alone=alone) as tortured:
            tortured.start()
            stuck = [f"at the start: {name} did not begin" for name in tortured.wait_flowing(START_PATIENCE)]
            tell(f"{len(tortured.members)} processes, {len(faults)} faults, sequence {fingerprint(faults)}")
            nemesis = Nemesis(tortured, faults, seconds, tell)
            nemesis.run()
            stuck += nemesis.stuck
            stuck += tortured.finish()
            tell("checking")
            stuck += gather(tortured)
            events = read(tortured.events())
            started = sum(member.incarnation for member in tortured.members.values())
        return judge(seed, seconds, began, faults, nemesis, stuck, events, started)


def gather(tortured: Cluster) -> list[str]:
    """Puts into journals what was recorded and what comes out of a replay; what is wrong with the recording itself."""
    path = tortured.recording
    if "recorder" not in tortured:
        return []
    try:
        wrong = verify(str(path))
        recording = Recording(path)
        with Journal(tortured.journals / "recording.journal", "recording") as journal:
            journal_recording(recording, journal)
        with (
            tempfile.TemporaryDirectory(prefix="framepool-replay-") as playground,
            Journal(tortured.journals / "replay.journal", "replay") as journal,
        ):
            journal_replay(recording, journal, Path(playground))
    except RecordingError as error:
        return [f"the recording cannot be read: {error}"]
    return [] if wrong.ok else [f"the recording does not verify: {wrong}"]


def judge(
    seed: int,
    seconds: float,
    began: float,
    faults: Sequence[Fault],
    nemesis: Nemesis,
    stuck: list[str],
    events: list[Event],
    started: int,
) -> Report:
    """The verdict: no violation, nobody stuck, and nobody ended without a reason."""
    violations = check(events, grace_ns=GRACE_NS)
    findings = [Finding(each, shortest(events, each, grace_ns=GRACE_NS)) for each in violations[:SHOWN]]
    unexplained = [each for each in nemesis.exits if not each.after]
    well = not violations and not stuck and not unexplained
    return Report(
        verdict="no violation" if well else "violation" if violations else "not well",
        seed=seed,
        seconds=seconds,
        elapsed=round(time.monotonic() - began, 1),
        sequence=fingerprint(faults),
        planned=len(faults),
        faults=dict(Counter(fault.kind.value for fault in nemesis.done).most_common()),
        left_out=dict(nemesis.left_out),
        frames=summary(events),
        processes=started,
        exits=nemesis.exits,
        stuck=stuck,
        violations=len(violations),
        findings=findings,
    )
