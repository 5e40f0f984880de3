"""`cnc.dat`, the file by which a media driver and its clients know each other: is it alive, what do its counters say.

It is read by `pread` and never mapped: a truncated or hostile file gives a `TransportError`, not a SIGBUS. Layout:
aeron_cnc_file_descriptor.h, aeron_rb.h and aeronc.h of Aeron 1.53 (CnC version 0.2).
"""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Iterator

import msgspec

from framepool.errors import TransportError

FILE = "cnc.dat"
HEADER = struct.Struct("<6i3qi")
HEADER_LENGTH = 128
RING_TRAILER = 768
HEARTBEAT_IN_TRAILER = 640
VALUE = struct.Struct("<4q")
VALUE_LENGTH = 128
METADATA = struct.Struct("<2iq112si380s")
METADATA_LENGTH = 512
RECORDS_PER_READ = 64
MAJOR_VERSION = 0
SHUT_DOWN = -1

STATES = {1: "allocated", -1: "reclaimed"}


class DriverStatus(msgspec.Struct, frozen=True):
    """What a media driver says about itself. `heartbeat_ms` is in milliseconds of the epoch, -1 after a clean end."""

    directory: str
    version: tuple[int, int, int]
    pid: int
    started_ms: int
    heartbeat_ms: int
    client_liveness_ns: int

    def age(self) -> float:
        """Seconds since the last heartbeat; infinite after a clean end or before the first one."""
        if self.heartbeat_ms <= 0:
            return float("inf")
        return max(0.0, time.time() - self.heartbeat_ms / 1000)

    def identity(self) -> tuple[int, int]:
        """Tells one run of a media driver from the next."""
        return self.pid, self.started_ms


class CounterRecord(msgspec.Struct, frozen=True):
    """One counter of the media driver or of a client."""

    id: int
    type_id: int
    label: str
    value: int
    key: bytes
    state: str
    registration_id: int
    owner_id: int


class CncFile:
    """An open cnc.dat. Its lengths were checked against the file's size once; every read is checked again."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.path = os.path.join(directory, FILE)
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            raise TransportError(f"no media driver in {directory}: {FILE}: {error.strerror}") from None
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise TransportError(f"{self.path} is not a regular file")
        (
            version,
            self._ring,
            clients,
            self._metadata_length,
            self._values_length,
            errors,
            self._liveness,
            self._started,
            self._pid,
            _,
        ) = HEADER.unpack(self._read(0, HEADER.size))
        self._version = (version >> 16 & 0xFF, version >> 8 & 0xFF, version & 0xFF)
        if version == 0:
            raise TransportError(f"{self.path} is not initialised: the media driver is starting or died at it")
        if self._version[0] != MAJOR_VERSION:
            raise TransportError(f"{self.path} has version {self._version}: an Aeron that framepool does not know")
        lengths = (self._ring, clients, self._metadata_length, self._values_length, errors)
        if min(lengths) < 0 or self._ring < RING_TRAILER:
            raise TransportError(f"{self.path} is damaged: its lengths are {lengths}")
        if HEADER_LENGTH + sum(lengths) > status.st_size:
            raise TransportError(
                f"{self.path} is truncated: {status.st_size} bytes of at least {HEADER_LENGTH + sum(lengths)}"
            )
        self._metadata_at = HEADER_LENGTH + self._ring + clients
        self._values_at = self._metadata_at + self._metadata_length

    def _read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) != length:
            raise TransportError(f"{self.path} is truncated: it ends at {offset + len(data)}")
        return data

    def status(self) -> DriverStatus:
        at = HEADER_LENGTH + self._ring - RING_TRAILER + HEARTBEAT_IN_TRAILER
        (heartbeat,) = struct.unpack("<q", self._read(at, 8))
        return DriverStatus(self.directory, self._version, self._pid, self._started, heartbeat, self._liveness)

    def counters(self) -> Iterator[CounterRecord]:
        """All counters in use or just given back, in the order of their ids."""
        count = min(self._metadata_length // METADATA_LENGTH, self._values_length // VALUE_LENGTH)
        for first in range(0, count, RECORDS_PER_READ):
            number = min(RECORDS_PER_READ, count - first)
            metadata = self._read(self._metadata_at + first * METADATA_LENGTH, number * METADATA_LENGTH)
            values = self._read(self._values_at + first * VALUE_LENGTH, number * VALUE_LENGTH)
            for i in range(number):
                state, type_id, _, key, length, label = METADATA.unpack_from(metadata, i * METADATA_LENGTH)
                if state == 0:
                    return
                value, registration_id, owner_id, _ = VALUE.unpack_from(values, i * VALUE_LENGTH)
                text = label[: min(max(length, 0), len(label))].decode(errors="replace")
                yield CounterRecord(
                    first + i,
                    type_id,
                    text,
                    value,
                    key,
                    STATES.get(state, f"unknown ({state})"),
                    registration_id,
                    owner_id,
                )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> CncFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def driver_status(directory: str) -> DriverStatus:
    """The status of the media driver in `directory`; TransportError says why there is none."""
    with CncFile(directory) as cnc:
        return cnc.status()


def counters(directory: str) -> list[CounterRecord]:
    with CncFile(directory) as cnc:
        return list(cnc.counters())


def is_active(directory: str, within: float) -> bool:
    """Whether a media driver gave a sign of life in the last `within` seconds. Drivers give one every second or more
    often, so less than 2 seconds makes mistakes."""
    try:
        return driver_status(directory).age() <= within
    except TransportError:
        return False
