"""Who carries a plan of faults out on a cluster, heals what it did, and sees to it that everybody finds back.

Whoever ends without having been killed is started again. That may happen to a process that was denied memory or
descriptors, or whose mapped file was cut (a SIGBUS, which no program can survive); to any other it may not.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from framepool.testing import tampering
from framepool.testing.cluster import Cluster, Member
from framepool.testing.faults import NETWORK, Fault, Kind

RECOVERY = 180.0
"""Seconds for everybody to find back after a round."""
PATIENCE = 2.0
"""How much longer than planned a run may take on a busy machine before it leaves the rest out."""
TICK = 0.05
MAPS_EVERY = 0.5
AFTERMATH = 15.0
"""Seconds for which a fault explains the end of a process."""
COMEBACK = 0.5
"""Seconds before who ended by itself is started again."""
HEADROOM = 2**20
"""Bytes of memory that are left to a process that gets no more."""
MAY_KILL = frozenset({Kind.DESCRIPTORS, Kind.MEMORY, Kind.TRUNCATE, Kind.FULL})
KILLS_EVERYBODY = frozenset({Kind.TRUNCATE, Kind.FULL})
JUMPS = (0.5, 1.5, 5.0, 60.0, 3_600.0, 86_400.0)


class Exit(msgspec.Struct, frozen=True):
    """A process that ended by itself."""

    process: str
    code: int
    after: str
    """The fault that explains it; empty if none does."""
    said: list[str]


class Nemesis:
    """Does what the plan says to one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        faults: Sequence[Fault],
        seconds: float = 0.0,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`seconds` is how long all of it is to take."""
        self.done: list[Fault] = []
        self.left_out: Counter[str] = Counter()
        self.exits: list[Exit] = []
        self.stuck: list[str] = []
        self._cluster = cluster
        self._faults = faults
        self._seconds = seconds
        self._tell = tell
        self._active: list[tuple[float, Fault, contextlib.ExitStack]] = []
        self._recent: list[tuple[float, Fault]] = []
        self._comebacks: list[tuple[float, Member]] = []
        self._maps_at = 0.0
        self._ways: dict[Kind, Callable[[Fault], contextlib.AbstractContextManager[None]]] = {
            Kind.KILL: self._kill,
            Kind.MEDIA_DRIVER: self._kill,
            Kind.STOP: self._stop,
            Kind.FULL: self._full,
            Kind.DESCRIPTORS: self._descriptors,
            Kind.MEMORY: self._memory,
            Kind.TRUNCATE: lambda fault: tampering.truncated(self._file(fault), fault.detail),
            Kind.REPLACE: lambda fault: tampering.replaced(self._file(fault), self._aside(fault)),
            Kind.SYMLINK: self._symlink,
            Kind.SUPERBLOCK: lambda fault: tampering.corrupted_superblock(self._file(fault), fault.detail),
            Kind.SLOT: lambda fault: tampering.lying_slots(self._ring(fault), fault.detail),
            Kind.CLOCK: self._clock,
            Kind.LOSS: self._loss,
            Kind.PARTITION: self._partition,
            Kind.DELAY: self._delay,
        }

    def run(self) -> None:
        """All rounds. Whatever happens, nothing that was done to the cluster stays."""
        rounds = sorted({fault.round for fault in self._faults})
        began = time.monotonic()
        try:
            for number in rounds:
                if number and time.monotonic() > began + PATIENCE * self._seconds:
                    left = [fault for fault in self._faults if fault.round >= number]
                    self.left_out["the machine is too slow, no time left"] = len(left)
                    self._tell(f"{len(left)} faults left out: the machine is too slow")
                    break
                self._round([fault for fault in self._faults if fault.round == number])
                well = self._cluster_recovers(number)
                self._tell(self._progress(number + 1, len(rounds), well))
                self._calm(began + (number + 1) * self._seconds / len(rounds))
        finally:
            self._heal(time.monotonic(), everything=True)

    def _round(self, faults: Sequence[Fault]) -> None:
        began = time.monotonic()
        waiting = list(faults)
        while waiting or self._active or self._comebacks:
            now = time.monotonic()
            self._heal(now)
            while waiting and began + waiting[0].at <= now:
                began = max(began, now - waiting[0].at)  # on a busy machine all of it is later, and nothing closer
                self._begin(waiting.pop(0))
            self._tend(now)
            time.sleep(TICK)

    def _calm(self, until: float) -> None:
        """The rest of a round in which nothing new goes wrong, and nobody has a reason to end."""
        while self._comebacks or time.monotonic() < until:
            self._heal(time.monotonic())
            self._tend(time.monotonic())
            time.sleep(TICK)

    def _begin(self, fault: Fault) -> None:
        missing = self._missing(fault)
        if missing:
            self.left_out[f"{fault.kind.value}: {missing}"] += 1
            return
        undo = contextlib.ExitStack()
        try:
            undo.enter_context(self._ways[fault.kind](fault))
        except (OSError, LookupError) as error:  # what it was about is gone just now
            undo.close()
            self.left_out[f"{fault.kind.value}: there was nothing to do it to"] += 1
            self._tell(f"  {fault.kind.value} of {fault.target} not done: {error}")
            return
        now = time.monotonic()
        self.done.append(fault)
        self._recent.append((now + fault.seconds + AFTERMATH, fault))
        self._active.append((now + fault.seconds, fault, undo))

    def _missing(self, fault: Fault) -> str:
        """What this cluster lacks for a fault."""
        if fault.kind in {Kind.LOSS, Kind.PARTITION} and self._cluster.net is None:
            return "no namespaces"
        if fault.kind is Kind.FULL and not self._cluster.places[0].small:
            return "no filesystem of its own"
        named = fault.target.isdigit() or fault.target in {NETWORK, "pools"}
        return "" if named or fault.target in self._cluster else "no such process here"

    def _heal(self, now: float, *, everything: bool = False) -> None:
        over = [each for each in self._active if everything or each[0] <= now]
        self._active = [each for each in self._active if not everything and each[0] > now]
        for _, _, undo in over:
            with contextlib.suppress(OSError):  # what was changed is gone by now
                undo.close()
        due = [member for when, member in self._comebacks if everything or when <= now]
        self._comebacks = [each for each in self._comebacks if not everything and each[0] > now]
        for member in due:
            self._cluster.restart(member)

    def _tend(self, now: float) -> None:
        """Starts again who ended, and looks at what everybody has mapped."""
        self._recent = [each for each in self._recent if each[0] > now]
        for member, code in list(self._cluster.exits()):
            self._note_exit(member, code)
            self._comebacks.append((now + COMEBACK, member))
        if now >= self._maps_at:
            self._maps_at = now + MAPS_EVERY
            self._cluster.look_at_maps()

    def _note_exit(self, member: Member, code: int) -> None:
        assert member.process is not None
        member.down = True
        member.process.wait()
        said = [line for line in member.process.lines[-40:] if not line.startswith("flowing")]
        self.exits.append(Exit(f"{member.name}.{member.incarnation}", code, self._explanation(member, code), said))
        if not self.exits[-1].after:
            self._tell(f"  {member.name} ended by itself with {code}: {said[-3:]}")

    def _explanation(self, member: Member, code: int) -> str:
        for _, fault in self._recent:
            everybody = fault.kind in KILLS_EVERYBODY and code == -signal.SIGBUS
            its_own = fault.kind in MAY_KILL and fault.target == member.name
            if everybody or its_own:
                return fault.kind.value
        return ""

    def _cluster_recovers(self, number: int) -> bool:
        """Waits until all is well again; False if something did not come back."""
        deadline = time.monotonic() + RECOVERY
        flow = self._cluster.flowing()
        left = next(flow)
        while left and time.monotonic() < deadline:
            self._heal(time.monotonic())
            self._tend(time.monotonic())
            time.sleep(TICK)
            left = next(flow)
        if not left:
            return True
        for what in left:
            names = [what] if what in self._cluster else [n for n in self._cluster.members if n.startswith("camera")]
            for name in names:
                self._cluster[name].say("status")
                self._cluster[name].signal(signal.SIGUSR1)
            time.sleep(1.0)
            said = {name: self._said(self._cluster[name]) for name in names}
            self.stuck.append(f"round {number}: {what} did not come back within {RECOVERY:g} s: {said}")
            self._tell(self.stuck[-1])
            for name in names:  # so that the others are tortured on
                self._cluster[name].kill()
                self._cluster.restart(self._cluster[name])
        return False

    @staticmethod
    def _said(member: Member) -> list[str]:
        if member.process is None:
            return []
        with contextlib.suppress(AssertionError):
            while member.process.has_line("nothing says this"):
                pass
        return [line for line in member.process.lines[-80:] if not line.startswith("flowing")]

    def _progress(self, number: int, rounds: int, well: bool) -> str:
        ended = len(self.exits)
        text = f"round {number} of {rounds}: {len(self.done)} faults done, {ended} processes ended by themselves"
        return text if well else text + ", NOT ALL CAME BACK"

    # The ways to do it. Each is undone when its block ends.

    @contextlib.contextmanager
    def _kill(self, fault: Fault) -> Iterator[None]:
        member = self._cluster[fault.target]
        member.kill()
        yield
        self._cluster.restart(member)

    @contextlib.contextmanager
    def _stop(self, fault: Fault) -> Iterator[None]:
        member = self._cluster[fault.target]
        member.signal(signal.SIGSTOP)
        yield
        member.signal(signal.SIGCONT)

    @contextlib.contextmanager
    def _full(self, fault: Fault) -> Iterator[None]:
        """And a producer that needs a new epoch."""
        place, camera = self._cluster.places[0], self._cluster["camera-1"]
        with tampering.full(place.outside(place.pools)):
            camera.kill()
            self._cluster.restart(camera)
            yield

    def _descriptors(self, fault: Fault) -> contextlib.AbstractContextManager[None]:
        pid = self._pid(fault)
        return limited(pid, resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{pid}/fd")) + fault.detail % 3)

    def _memory(self, fault: Fault) -> contextlib.AbstractContextManager[None]:
        pid = self._pid(fault)
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        return limited(pid, resource.RLIMIT_AS, pages * resource.getpagesize() + HEADROOM)

    @contextlib.contextmanager
    def _symlink(self, fault: Fault) -> Iterator[None]:
        """One component of the path, whichever it is, leads to a copy outside of the allowed directories in turn, while
        a reader is started anew that has to open what is there."""
        place, reader = self._cluster.places[0], self._cluster["eye-1"]
        base = place.outside(place.pools)
        file = self._file(fault)
        parts = file.relative_to(base).parts
        component = base.joinpath(*parts[: 1 + fault.detail % len(parts)])
        decoy = place.shm / f"decoy-{fault.number}"
        copy = shutil.copytree if component.is_dir() else shutil.copy2
        with contextlib.suppress(shutil.Error, OSError):  # an epoch that ends meanwhile
            copy(component, place.outside(decoy))
        try:
            with tampering.swapped(component, self._aside(fault), str(decoy)):
                reader.kill()
                self._cluster.restart(reader)
                yield
        finally:
            outside = place.outside(decoy)
            shutil.rmtree(outside, ignore_errors=True)
            outside.unlink(missing_ok=True) if outside.is_file() else None

    @contextlib.contextmanager
    def _clock(self, fault: Fault) -> Iterator[None]:
        """Ahead; of the driver also behind. A client whose monotonic clock went back would hold its lease for longer
        than it is: no clock of that name does so."""
        member = self._cluster[fault.target]
        direction = -1 if member.role == "driver" and fault.detail & 1 else 1
        member.say(f"jump {direction * JUMPS[fault.detail // 2 % len(JUMPS)]}")
        yield
        member.kill()
        self._cluster.restart(member)

    @contextlib.contextmanager
    def _loss(self, fault: Fault) -> Iterator[None]:
        assert self._cluster.net is not None
        self._cluster.net.drop(1 + fault.detail % 30)
        yield
        self._cluster.net.heal()

    @contextlib.contextmanager
    def _partition(self, fault: Fault) -> Iterator[None]:
        net = self._cluster.net
        assert net is not None
        net.partition(net[0], net[1])
        yield
        net.heal()

    @contextlib.contextmanager
    def _delay(self, fault: Fault) -> Iterator[None]:
        recorder = self._cluster["recorder"]
        recorder.say(f"delay {0.05 + fault.detail % 20 / 20}")
        yield
        recorder.say("delay 0")

    # What it is done to

    def _pid(self, fault: Fault) -> int:
        pid = self._cluster[fault.target].pid
        if pid is None:
            raise LookupError(f"{fault.target} is not there")
        return pid

    def _file(self, fault: Fault) -> Path:
        place = self._cluster.places[0]
        files = tampering.region_files(place.outside(place.pools), int(fault.target))
        if not files:
            raise LookupError(f"stream {fault.target} has no files")
        return files[fault.detail % len(files)]

    def _ring(self, fault: Fault) -> Path:
        return self._file(fault).parent / "header.ring"

    def _aside(self, fault: Fault) -> Path:
        place = self._cluster.places[0]
        return place.outside(place.pools) / f"aside-{fault.number}"


@contextlib.contextmanager
def limited(pid: int, what: int, most: int) -> Iterator[None]:
    """A process has no more than that of something."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, what, before)
