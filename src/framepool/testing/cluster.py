"""A cluster to torture: every part of framepool in a process of its own, on two hosts where the machine can do that.

On host a: media driver, driver, registry, three producers of two streams (two of them want the same one), three
readers, a recorder, the sending bridge and a witness of the driver. On host b: media driver, driver, the receiving
bridge and a reader. Without namespaces there is only host a, which is this machine, and no bridge.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from framepool.testing import hosts
from framepool.testing.journal import Journal
from framepool.testing.members import mapped_files
from framepool.testing.processes import Process, Processes
from framepool.testing.toml import write_toml

STREAM, OTHER, BRIDGED = 10_000, 10_001, 50_000
POOLS_BYTES = 48 * 2**20
"""Of the filesystem of the streams, where it is one of its own."""
LEASE_MS = 2_000
REGISTRY_STREAM = 7_100
START_PATIENCE = 120.0


class Place:
    """Where processes run: a host of its own, or this machine. `shm` is its shared memory as they see it."""

    def __init__(self, shm: Path, processes: Processes, host: hosts.Host | None = None) -> None:
        self.shm = shm
        self.host = host
        self._processes = processes
        self._root = Path("/") if host is None else host.seen_from_outside("/")
        self.outside(self.pools).mkdir(mode=0o700)
        if host is not None:
            options = f"size={POOLS_BYTES},mode=0700"
            mount = ["mount", "-t", "tmpfs", "-o", options, "pools", str(self.pools)]
            subprocess.run([*host.holder.enter("mount"), *mount], check=True)

    @property
    def pools(self) -> Path:
        """The base directory of the streams."""
        return self.shm / "pools"

    @property
    def small(self) -> bool:
        """Whether the streams have a filesystem of their own, that can be filled."""
        return self.host is not None

    def outside(self, path: Path) -> Path:
        """Where this process finds what is `path` there."""
        return self._root / path.relative_to("/")

    def start(self, *args: str) -> Process:
        return self._processes.start(*args) if self.host is None else self.host.start(*args)


class Member:
    """One process of the cluster, started again under another name each time."""

    def __init__(self, name: str, role: str, place: Place, config: Path, streams: Sequence[int] = (), **options: str):
        self.name = name
        self.role = role
        self.place = place
        self.streams = tuple(streams)
        self.process: Process | None = None
        self.incarnation = 0
        self.down = False
        """Whether it is meant to be."""
        self.patch = ""
        self._config = config
        self._options = [word for key, value in options.items() for word in (f"--{key}", value)]

    def start(self, directory: Path) -> None:
        if self.process is not None:
            self.process.close()
        self.incarnation += 1
        name = f"{self.name}.{self.incarnation}"
        journal = str(directory / f"{name}.journal")
        patch = ["--patch", self.patch] if self.patch else []
        streams = map(str, self.streams)
        self.process = self.place.start(
            "-m", "framepool.testing.worker", self.role, str(self._config), name, journal, *streams, *self._options,
            *patch,
        )  # fmt: skip
        self.down = False

    def kill(self) -> None:
        """SIGKILL; it is not started again before `start`."""
        self.down = True
        if self.process is not None:
            self.process.kill()

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.popen.poll() is None:
            self.process.signal(number)

    def say(self, text: str) -> None:
        """Tells the process something, if it is there to hear it."""
        with contextlib.suppress(OSError):
            if self.process is not None:
                self.process.say(text)

    @property
    def pid(self) -> int | None:
        alive = self.process is not None and self.process.popen.poll() is None
        return self.process.pid if alive and self.process is not None else None

    def flows(self) -> bool:
        """Whether it said so since it was last asked."""
        with contextlib.suppress(AssertionError):  # it ends just now
            return self.process is not None and self.pid is not None and self.process.has_line("flowing")
        return False


class Cluster:
    """All of them, with their journals in `directory`."""

    def __init__(self, directory: Path, places: Sequence[Place], net: hosts.Hosts | None) -> None:
        self.directory = directory
        self.places = tuple(places)
        self.net = net
        self.recording = directory / "recording"
        self.journals = directory / "journals"
        self.journals.mkdir()
        self.stage = Journal(self.journals / "nemesis.journal", "nemesis")
        self.members: dict[str, Member] = {}
        self._files: set[tuple[str, str]] = set()
        for place in self.places:
            for allowed in (place.pools, place.shm / "aeron"):
                self.stage.allowed(str(allowed))
        self.stage.allowed(str(self.recording))
        self._add_host_a(self.places[0])
        if net is not None:
            self.stage.bridged(STREAM, BRIDGED)
            self._add_host_b(self.places[1])

    def _add_host_a(self, place: Place) -> None:
        config = self._config(place, "a", **self._bridge("sender"))
        asked = self._config(
            place,
            "registry",
            discovery={"host": "host-a", "stream_id": REGISTRY_STREAM},
            registry={
                "media_driver": "external",
                "sources": [{"driver_instance_id": "driver-a", "host": "host-a", "channel": "aeron:ipc"}],
            },
        )
        self._add("media-a", "media-driver", place, config)
        self._add("driver-a", "driver", place, config)
        self._add("witness-a", "witness", place, config)
        self._add("registry", "registry", place, asked)
        self._add("recorder", "record", place, config, (STREAM, OTHER), directory=str(self.recording))
        self._add("camera-0", "produce", place, config, (STREAM,))
        self._add("spare-0", "produce", place, config, (STREAM,))
        self._add("camera-1", "produce", place, config, (OTHER,))
        self._add("eye-0", "consume", place, config, (STREAM,))
        self._add("eye-1", "consume", place, config, (STREAM, OTHER))
        self._add("slow", "consume", place, config, (STREAM,), dwell="0.2")
        if self.net is not None:
            self._add("bridge-a", "bridge", place, config)

    def _add_host_b(self, place: Place) -> None:
        config = self._config(place, "b", **self._bridge("receiver"))
        self._add("media-b", "media-driver", place, config)
        self._add("driver-b", "driver", place, config)
        self._add("bridge-b", "bridge", place, config)
        self._add("eye-b", "consume", place, config, (BRIDGED,))

    def _add(
        self, name: str, role: str, place: Place, config: Path, streams: Sequence[int] = (), **options: str
    ) -> None:
        self.members[name] = Member(name, role, place, config, streams, **options)

    def _config(self, place: Place, name: str, **more: Any) -> Path:
        values: dict[str, Any] = {
            "aeron": {
                "directory": str(place.shm / "aeron"),
                "driver_timeout": 3.0,
                "keepalive_interval": 0.2,
                "idle_sleep": 0.004,
                "client_liveness_timeout": 5.0,
                "publication_unblock_timeout": 7.0,
                "publication_linger_timeout": 1.0,
                "image_liveness_timeout": 5.0,
                "term_length": 2**20,
            },
            "channels": {"descriptor": "aeron:ipc?term-length=1m"},
            "driver": {
                "media_driver": "external",
                "shm_base_dir": str(place.pools),
                "namespace": "torture",
                "announce_period_ms": 200,
                "keepalive_interval_ms": LEASE_MS // 5,
                "lease_expiry_ms": LEASE_MS,
            },
            "discovery": {"host": f"host-{name}", "driver_instance_id": f"driver-{name}"},
            "recorder": {"segment_bytes": 8 * 2**20, "staging_bytes": 4 * 2**20, "segment_seconds": 20.0},
            "profiles": {
                "default": {
                    "nslots": 32,
                    "pools": [{"pool_id": 1, "stride_bytes": 4096}, {"pool_id": 2, "stride_bytes": 32_768}],
                }
            },
        }
        return write_toml(self.directory / f"{name}.toml", {**values, **more})

    def _bridge(self, role: str) -> dict[str, Any]:
        if self.net is None:
            return {}
        target = self.net[1].address
        ways = {"payload": 40_100, "control": 40_101, "metadata": 40_102}
        channels = {f"{way}_channel": f"aeron:udp?endpoint={target}:{port}" for way, port in ways.items()}
        streams = {f"{way}_stream_id": 3_000 + number for number, way in enumerate(ways)}
        return {
            "bridge": {"instance_id": f"bridge-{role}", "role": role, **channels, **streams},
            "mappings": [{"source_stream_id": STREAM, "dest_stream_id": BRIDGED}],
        }

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def __contains__(self, name: str) -> bool:
        return name in self.members

    def start(self, only: Sequence[str] = ()) -> None:
        """Starts everybody, the media drivers first."""
        names = [name for name in self.members if not only or name in only]
        self.members = {name: self.members[name] for name in names}
        for name in sorted(names, key=lambda name: not name.startswith("media")):
            self.members[name].start(self.journals)

    def wait_flowing(self, patience: float) -> list[str]:
        """Waits until frames pass everywhere; where they do not after `patience` seconds."""
        deadline = time.monotonic() + patience
        for waiting in self.flowing():
            if not waiting or time.monotonic() > deadline:
                return waiting
            time.sleep(0.05)
        raise AssertionError("it has no end")

    def restart(self, member: Member) -> None:
        member.start(self.journals)

    def exits(self) -> Iterator[tuple[Member, int]]:
        """Who ended though nobody wanted it, and with which code."""
        for member in self.members.values():
            if member.process is not None and not member.down and (code := member.process.popen.poll()) is not None:
                yield member, code

    def look_at_maps(self) -> None:
        """Tells the journal which files are mapped by whom."""
        for member in self.members.values():
            if member.pid is not None:
                name = f"{member.name}.{member.incarnation}"
                new = {(name, path) for path in mapped_files(member.pid)} - self._files
                self._files |= new
                self.stage.files(sorted(path for _, path in new))

    def flowing(self) -> Iterator[list[str]]:
        """Where frames did not pass yet since the first look, at each look; nowhere once they pass everywhere."""
        for member in self.members.values():
            member.flows()  # what was said before does not count
        waiting = self._groups()
        while True:
            waiting = {
                what: names for what, names in waiting.items() if not any(self.members[name].flows() for name in names)
            }
            yield sorted(waiting)

    def _groups(self) -> dict[str, list[str]]:
        """Of producers that want the same stream one is enough."""
        groups: dict[str, list[str]] = {}
        for name, member in self.members.items():
            if member.role != "witness":
                what = f"producer of {member.streams[0]}" if member.role == "produce" else name
                groups.setdefault(what, []).append(name)
        return groups

    def finish(self) -> list[str]:
        """Ends everybody in good order, whoever publishes first; who did not."""
        failed = []
        order = ("produce", "consume", "record", "bridge", "registry", "witness", "driver", "media-driver")
        for role in order:
            group = [member for member in self.members.values() if member.role == role and member.pid is not None]
            for member in group:
                member.say("end")
            for member in group:
                assert member.process is not None
                try:
                    code = member.process.wait(START_PATIENCE)
                    if code != 0:
                        failed.append(f"{member.name} ended with {code}: {member.process.lines[-3:]}")
                except subprocess.TimeoutExpired:
                    member.signal(signal.SIGUSR1)
                    time.sleep(1)
                    member.kill()
                    member.process.wait()
                    failed.append(f"{member.name} did not end: {member.process.lines[-40:]}")
            if role == "produce":
                time.sleep(1.0)  # so that what was published last arrives
        return failed

    def close(self) -> None:
        self.stage.close()

    def events(self) -> list[Path]:
        """All journals."""
        return sorted(self.journals.glob("*.journal"))


@contextlib.contextmanager
def cluster(directory: Path, *, alone: bool = False) -> Iterator[Cluster]:
    """A cluster for the length of a block, nothing of which outlives it; `alone` does without a second host."""
    with contextlib.ExitStack() as opened:
        processes = Processes(sys.executable)
        opened.callback(processes.stop_all)
        if not alone and not hosts.missing():
            net = opened.enter_context(hosts.make_hosts(2, processes))
            opened.callback(processes.stop_all)
            places = [Place(Path("/dev/shm"), processes, host) for host in net]
            yield opened.enter_context(contextlib.closing(Cluster(directory, places, net)))
        else:
            root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            shm = Path(tempfile.mkdtemp(prefix="framepool-torture-", dir=root))
            opened.callback(shutil.rmtree, shm, ignore_errors=True)
            opened.callback(processes.stop_all)
            yield opened.enter_context(contextlib.closing(Cluster(directory, [Place(shm, processes)], None)))
