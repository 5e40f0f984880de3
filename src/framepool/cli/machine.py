"""What `framepool doctor` looks at: the machine, one question after the other, each with what to change.

A check reads and never writes. It takes a `Machine`, whose files may lie below another root, so that each answer can be
seen in a test. A check that needs the compiled core imports it itself: without one, the others still answer.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from framepool.clock import NANOS_PER_MILLI, MonotonicClock
from framepool.config import Config, default_profile
from framepool.errors import ConfigurationError, FramepoolError, TransportError
from framepool.transport import cnc

State = Literal["ok", "note", "warning", "failure"]

MIB = 2**20
LITTLE_SHM = 256 * MIB
TMPFS_MAGIC = 0x01021994
HUGETLBFS_MAGIC = 0x958458F6
FEW_FILES = 4096
SILENCE = 2.5
"""Seconds without a heartbeat after which a media driver is gone: it gives one each second or more often."""
SOCKET_BUFFER = 2 * MIB
"""What Aeron asks the kernel for on each UDP socket."""
SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies"})
STA_UNSYNC = 0x0040
OPENAT2_KERNEL = (5, 6)
EXTRAS = {
    "console": ("starlette", "uvicorn", "websockets", "textual", "prometheus_client"),
    "spark": ("pyspark", "pyarrow"),
}


class Finding(msgspec.Struct, frozen=True):
    """One answer: a failure keeps framepool from working, a warning makes it slower or smaller than it could be."""

    name: str
    state: State
    found: str
    remedy: str = ""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look."""

    config: Config
    root: Path = Path("/")
    refusal: str = ""
    """What is wrong with the configuration that was asked for."""

    def read(self, path: str) -> str | None:
        """The text of a file below the root, or None."""
        try:
            return (self.root / path.lstrip("/")).read_text().strip()
        except OSError:
            return None


def examine(machine: Machine) -> Iterator[Finding]:
    """Every finding, in the order in which people read them. A check that breaks is a finding too."""
    for check in CHECKS:
        try:
            yield from check(machine)
        except (OSError, ValueError, ImportError, FramepoolError) as error:
            yield Finding(check.__name__.replace("_", " "), "warning", f"could not be looked at: {error}")


def configuration(machine: Machine) -> Iterator[Finding]:
    """Whether it could be read; if not, the others look with the defaults."""
    if machine.refusal:
        yield Finding("configuration", "failure", machine.refusal, "framepool config check FILE says more")


def python(machine: Machine) -> Iterator[Finding]:
    """The interpreter and our own packages."""
    found = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    yield Finding("python", "ok", found)
    versions = {}
    for package in ("framepool", "numpy", "msgspec", "pyaeron", "cyclopts", "rich"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("packages", "failure", f"{package} is not installed", "pip install framepool")
    yield Finding("packages", "ok", ", ".join(f"{name} {version}" for name, version in versions.items()))
    for extra, modules in EXTRAS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if missing:
            text = f"without {', '.join(missing)}"
            yield Finding(f"extra {extra}", "note", text, f"pip install 'framepool[{extra}]', if you want it")


def native_core(machine: Machine) -> Iterator[Finding]:
    """The compiled part, and the Aeron library below it."""
    try:
        from framepool._native import aeron, frames, seqlock  # noqa: F401
    except (ImportError, FramepoolError) as error:
        remedy = "reinstall framepool; it needs the wheel of pyaeron or FRAMEPOOL_AERON_LIBRARY"
        yield Finding("aeron library", "failure", str(error), remedy)
        return
    yield Finding("aeron library", "ok", f"{aeron.aeron_version()} in {aeron.LIBRARY}")


def kernel(machine: Machine) -> Iterator[Finding]:
    """Its age, and how many cores it gives us."""
    release = machine.read("/proc/sys/kernel/osrelease") or platform.release()
    numbers = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    if numbers < OPENAT2_KERNEL:
        text = f"{release}: without openat2, paths are walked step by step"
        yield Finding("kernel", "note", text, "Linux 5.6 or newer")
    else:
        yield Finding("kernel", "ok", f"{platform.system()} {release}, {platform.machine()}")
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        remedy = "give it two: Aeron's media driver and the programs share one core now"
        yield Finding("cores", "warning", f"{cores} for this process", remedy)
    else:
        yield Finding("cores", "ok", f"{cores} for this process")


def shared_memory(machine: Machine) -> Iterator[Finding]:
    """The filesystem of the regions: there, ours to write, in memory, and large enough."""
    base = machine.config.driver.shm_base_dir
    path = machine.root / base.lstrip("/")
    if not path.is_dir():
        remedy = f"mount -t tmpfs -o size=50%,mode=1777 tmpfs {base}, or set driver.shm_base_dir"
        yield Finding("shared memory", "failure", f"{base} does not exist", remedy)
        return
    if not os.access(path, os.W_OK | os.X_OK):
        remedy = f"chmod 1777 {base}, or set driver.shm_base_dir to a directory of yours"
        yield Finding("shared memory", "failure", f"{base} is not writable by user {os.geteuid()}", remedy)
        return
    kind, room = _filesystem(path), os.statvfs(path)
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    found = f"{base}: {_mib(free)} of {_mib(size)} free"
    if kind not in (TMPFS_MAGIC, HUGETLBFS_MAGIC):
        yield Finding("shared memory", "warning", f"{found}, on a disk", "use a tmpfs: a disk writes every frame back")
    larger = f"mount -o remount,size=2g {base}; in a container: --shm-size=2g"
    try:
        profile = default_profile(free)
    except ConfigurationError as error:
        yield Finding("shared memory", "failure", f"{found}: {error}", larger)
        return
    largest = max(pool.stride_bytes for pool in profile.pools)
    holds = f"streams without a profile hold {profile.nslots} frames of up to {_mib(largest)}"
    yield Finding("shared memory", "warning" if free < LITTLE_SHM else "ok", f"{found}; {holds}", larger)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        text = f"{base} has mode {mode:04o}: anybody can remove and replace our files"
        yield Finding("shared memory mode", "warning", text, f"chmod 1777 {base}")


def hugepages(machine: Machine) -> Iterator[Finding]:
    """Needed only by streams that ask for them."""
    facts = dict(re.findall(r"^(\w+):\s+(\d+)", machine.read("/proc/meminfo") or "", re.MULTILINE))
    total, free = int(facts.get("HugePages_Total", 0)), int(facts.get("HugePages_Free", 0))
    size = int(facts.get("Hugepagesize", 0)) * 1024
    found = f"{free} of {total} pages of {_mib(size)} free"
    directory = machine.config.driver.hugepages_dir
    if not directory:
        yield Finding("hugepages", "ok", f"not used (driver.hugepages_dir is empty); {found}")
        return
    path = machine.root / directory.lstrip("/")
    if not path.is_dir() or _filesystem(path) != HUGETLBFS_MAGIC:
        remedy = f"mkdir -p {directory} && mount -t hugetlbfs none {directory}"
        yield Finding("hugepages", "failure", f"{directory} is not a hugetlbfs", remedy)
    elif free == 0:
        yield Finding("hugepages", "failure", found, "sysctl vm.nr_hugepages=512")
    else:
        yield Finding("hugepages", "ok", f"{directory}: {found}")


def limits(machine: Machine) -> Iterator[Finding]:
    """Of this process, as its children inherit them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft)}, at the most {_limit(hard)}"
    if soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        remedy = f"ulimit -n {FEW_FILES} (LimitNOFILE= of a service): a stream takes a few, and so does each connection"
        yield Finding("open files", "warning", found, remedy)
    else:
        yield Finding("open files", "ok", found)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = f"{_limit(locked, 1024)} KiB; framepool locks none"
    yield Finding("locked memory", "note", text, "ulimit -l unlimited, for programs of yours that call mlockall")
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY:
        yield Finding("file size", "warning", f"{_mib(size)} at the most", "ulimit -f unlimited: a pool is one file")


def governor(machine: Machine) -> Iterator[Finding]:
    """Whether cores slow down between frames."""
    pattern = str(machine.root / "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    governors = {Path(path).read_text().strip() for path in glob.glob(pattern)}
    if not governors:
        yield Finding("cpu governor", "ok", "no frequency scaling is shown here, as in most virtual machines")
    elif governors == {"performance"}:
        yield Finding("cpu governor", "ok", "performance")
    else:
        remedy = "cpupower frequency-set -g performance: cores that slow down between frames add latency"
        yield Finding("cpu governor", "warning", ", ".join(sorted(governors)), remedy)


def clocks(machine: Machine) -> Iterator[Finding]:
    """How long it takes to ask the time, and whether the time of day is right."""
    source = machine.read("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    if source in SLOW_CLOCKS:
        remedy = "clocksource=tsc on the kernel's command line: every time stamp is a system call now"
        yield Finding("clock source", "warning", source, remedy)
    else:
        yield Finding("clock source", "ok", source)
    needed = machine.config.driver.clock == "realtime_synced"
    synced = _clock_is_synchronised()
    if synced:
        yield Finding("clock synchronisation", "ok", "the kernel says that the clock is synchronised")
    else:
        remedy = "run chrony or ptp4l; needed to compare times with those of other hosts"
        state: State = "failure" if needed else "note"
        yield Finding("clock synchronisation", state, "the kernel does not know it to be synchronised", remedy)


def network(machine: Machine) -> Iterator[Finding]:
    """What bridges and the console need."""
    for name in ("rmem_max", "wmem_max"):
        value = int(machine.read(f"/proc/sys/net/core/{name}") or 0)
        if 0 < value < SOCKET_BUFFER:
            remedy = f"sysctl net.core.{name}={SOCKET_BUFFER}, for bridges: a burst overflows a small buffer"
            yield Finding(f"socket buffers ({name})", "warning", f"{value} bytes", remedy)
        elif value:
            yield Finding(f"socket buffers ({name})", "ok", f"{value} bytes")
    host, port = machine.config.console.host, machine.config.console.port
    if not port:
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            remedy = "the console runs already, or choose another: console.port, framepool console --port"
            yield Finding("console port", "note", f"{host}:{port} is taken: {error.strerror}", remedy)
        else:
            yield Finding("console port", "ok", f"{host}:{port} is free")


def driver(machine: Machine) -> Iterator[Finding]:
    """Whether one runs in the configured namespace."""
    from framepool.driver.driver import make_allocator
    from framepool.driver.janitor import process_lives
    from framepool.driver.status import StatusUnavailable, read_status

    try:
        status = read_status(make_allocator(machine.config.driver))
    except StatusUnavailable:
        yield Finding("driver", "note", f"none in namespace {machine.config.driver.namespace!r}", "framepool driver")
        return
    if process_lives(status["pid"]):
        found = f"process {status['pid']}: {len(status['streams'])} streams, {len(status['leases'])} leases"
        yield Finding("driver", "ok", found)
    else:
        yield Finding("driver", "warning", f"process {status['pid']} died", "framepool driver; it cleans up after it")


def leftovers(machine: Machine) -> Iterator[Finding]:
    """Directories of media drivers and epochs of drivers that are gone, and hold memory."""
    from framepool.cli.driver import STALE_PERIODS
    from framepool.driver import janitor

    dead = sorted(_dead_media_drivers(machine))
    for directory in dead:
        text = f"{directory}: {_mib(_size(Path(directory)))} of a media driver that is gone"
        yield Finding("leftover Aeron directory", "warning", text, f"rm -r {directory}")
    config = machine.config.driver
    freshness_ns = STALE_PERIODS * config.announce_period_ms * NANOS_PER_MILLI
    epochs = list(janitor.abandoned(config.shm_base_dir, MonotonicClock(), freshness_ns))
    if epochs:
        yield Finding("leftover epochs", "warning", f"{len(epochs)} of processes that are gone", "framepool gc")
    demos = [path for path in Path("/dev/shm").glob("framepool-demo-*") if not janitor.process_lives(_demo_pid(path))]
    if demos:
        yield Finding("leftover demos", "warning", f"{len(demos)} in /dev/shm", "framepool demo --seconds 1")
    if not (dead or epochs or demos):
        yield Finding("leftovers", "ok", "none")


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    configuration,
    python,
    native_core,
    kernel,
    shared_memory,
    hugepages,
    limits,
    governor,
    clocks,
    network,
    driver,
    leftovers,
)


def _dead_media_drivers(machine: Machine) -> Iterator[str]:
    """Of this user: the configured directory, and what lies where Aeron and framepool put theirs."""
    shm = str(machine.root / "dev/shm")
    patterns = [f"{shm}/aeron-*", f"{shm}/framepool-aeron-*", machine.config.aeron.directory]
    for directory in {path for pattern in patterns for path in glob.glob(pattern)}:
        try:
            if not os.path.isdir(directory) or os.stat(directory).st_uid != os.geteuid():
                continue
            status = cnc.driver_status(directory)
        except (OSError, TransportError):
            continue
        if status.age() > SILENCE and not os.path.exists(f"/proc/{status.pid}"):
            yield directory


def _demo_pid(path: Path) -> int:
    number = path.name.removeprefix("framepool-demo-").partition("-")[0]
    return int(number) if number.isdigit() else os.getpid()


def _clock_is_synchronised() -> bool:
    """What the kernel's own discipline says (`adjtimex`, read only)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex"):
        return False
    words = (ctypes.c_long * 64)()  # struct timex is smaller; modes 0 changes nothing
    if libc.adjtimex(ctypes.byref(words)) < 0:
        return False
    status = ctypes.cast(ctypes.byref(words, 5 * ctypes.sizeof(ctypes.c_long)), ctypes.POINTER(ctypes.c_int))[0]
    return not status & STA_UNSYNC


class _Statfs(ctypes.Structure):
    """Its first field is the same everywhere; the rest is room."""

    _fields_ = (("type", ctypes.c_long), ("rest", ctypes.c_long * 31))


def _filesystem(path: Path) -> int:
    """The magic number of the filesystem under a path; 0 where it cannot be told."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = _Statfs()
    if not hasattr(libc, "statfs") or libc.statfs(os.fsencode(path), ctypes.byref(found)) != 0:
        return 0
    return int(found.type) & 0xFFFFFFFF


def _size(directory: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def _limit(value: int, unit: int = 1) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value // unit)


def _mib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / MIB:.0f} MiB" if size >= MIB else f"{size} bytes"
