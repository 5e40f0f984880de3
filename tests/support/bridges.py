"""Two hosts on one machine for tests of the bridge: each with its own media driver, driver, directory and namespace.

They meet over UDP on 127.0.0.1 only. `Stranger` is a third party that hears and says what it likes on any channel of a
host, the channels between the bridges included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

import framepool as fp
from framepool.bridge import Bridge
from framepool.config import Config
from framepool.driver.driver import ShmDriver
from framepool.transport import channel
from framepool.transport.aeron import Client, Publication
from framepool.wire.message import Message
from tests.support.onlooker import PATIENCE, Ear, wait_until
from tests.support.ports import free_ports

SOURCE, DEST = 10_000, 50_000
POOLS = [{"pool_id": 1, "stride_bytes": 4096}, {"pool_id": 2, "stride_bytes": 65_536}]


def link(first_stream_id: int = 3000, *, metadata: bool = True, **more: Any) -> dict[str, Any]:
    """The channels between two hosts, on free ports."""
    payload, control, told = free_ports(3)
    table = {
        "payload_channel": f"aeron:udp?endpoint=127.0.0.1:{payload}|term-length=1m",
        "payload_stream_id": first_stream_id,
        "control_channel": f"aeron:udp?endpoint=127.0.0.1:{control}|term-length=64k",
        "control_stream_id": first_stream_id + 1,
    }
    if metadata:
        table["metadata_channel"] = f"aeron:udp?endpoint=127.0.0.1:{told}|term-length=1m"
        table["metadata_stream_id"] = first_stream_id + 2
    return {**table, **more}


def mapping(source: int = SOURCE, dest: int = DEST, **more: Any) -> dict[str, Any]:
    return {"source_stream_id": source, "dest_stream_id": dest, **more}


class Host:
    """One host: a directory in shared memory, a media driver, a driver."""

    def __init__(self, base_dir: Path, name: str, **sections: Any) -> None:
        self.name = name
        self.directory = base_dir / name
        self.directory.mkdir()
        self.table: dict[str, Any] = {
            "aeron": {"directory": str(self.directory / "aeron")},
            "driver": {"shm_base_dir": str(self.directory), "announce_period_ms": 100, "lease_expiry_ms": 60_000},
            "discovery": {"host": name},
            "profiles": {"default": {"nslots": 16, "pools": POOLS}},
            **sections,
        }
        self.config = self.configured()
        self._opened = contextlib.ExitStack()

    def configured(self, **more: Any) -> Config:
        """Its configuration, with further tables."""
        return msgspec.convert({**self.table, **more}, Config)

    def start(self) -> Self:
        self._opened.enter_context(ShmDriver(self.config).start())
        return self

    @property
    def pool(self) -> fp.Pool:
        """A connection, made when it is first asked for."""
        if not hasattr(self, "_pool"):
            self._pool = self._opened.enter_context(fp.connect(self.config))
        return self._pool

    def bridge(self, link: dict[str, Any], *mappings: dict[str, Any], **more: Any) -> Bridge:
        """A bridge in this process that ends with the host."""
        section = {"instance_id": f"bridge-{self.name}", "assembly_timeout_ms": 30_000, **link, **more}
        config = self.configured(bridge=section, mappings=list(mappings))
        return self._opened.enter_context(fp.bridge(config))

    def stranger(self) -> Stranger:
        return self._opened.enter_context(Stranger(self.config))

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class Stranger:
    """An Aeron client of its own at the media driver of a host."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._client = Client.connect(config.aeron, name="stranger", timeout=PATIENCE)
        self._mouths: dict[tuple[str, int], Publication] = {}

    def hear(self, where: str, stream_id: int) -> Ear:
        """Everything on a stream of any channel from now on."""
        return Ear(self._client.add_subscription(where, stream_id))

    def hear_local(self, stream_id: int) -> Ear:
        return self.hear(channel.control(), stream_id)

    def say(self, where: str, stream_id: int, message: Message | bytes) -> None:
        """Says it to whoever listens; somebody must."""
        if (where, stream_id) not in self._mouths:
            self._mouths[where, stream_id] = self._client.add_publication(where, stream_id)
        mouth = self._mouths[where, stream_id]
        data = message if isinstance(message, bytes) else message.encode()
        wait_until(lambda: mouth.offer(data) > 0)

    def say_local(self, stream_id: int, message: Message) -> None:
        descriptors = stream_id == self.config.stream_ids.descriptor
        make = channel.descriptor_publication if descriptors else channel.control_publication
        self.say(make(settings=self.config.aeron), stream_id, message)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


type Both = tuple[Host, Host]


@contextlib.contextmanager
def two_hosts(base_dir: Path) -> Iterator[Both]:
    with Host(base_dir, "a") as here, Host(base_dir, "b") as there:
        yield here, there


def bridged(hosts: Both, *mappings: dict[str, Any], **more: Any) -> tuple[Bridge, Bridge]:
    """A bridge from the first host to the second."""
    between = more.pop("between", None) or link()
    wanted = mappings or (mapping(),)
    sender = hosts[0].bridge(between, *wanted, role="sender", **more)
    return sender, hosts[1].bridge(between, *wanted, role="receiver", **more)


def mapping_of(bridge: Bridge, name: str = str(SOURCE)) -> dict[str, Any]:
    """What a bridge says of one of its mappings."""
    (found,) = [each for each in bridge.statistics()["mappings"] if each["mapping"] == name]
    return dict(found)


def running(*bridges: Bridge) -> None:
    """Waits until every mapping of these bridges runs."""
    wait_until(lambda: all(each["state"] == "running" for bridge in bridges for each in states(bridge)))


def states(bridge: Bridge) -> list[dict[str, Any]]:
    return list(bridge.statistics()["mappings"])


def image(number: int, shape: tuple[int, ...] = (40, 30)) -> npt.NDArray[np.uint16]:
    """A picture like no other."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 2**16, shape, np.uint16)


def carried(camera: fp.Producer, eye: fp.Consumer, count: int = 5, first: int = 0) -> list[fp.Frame]:
    """Publishes pictures, each after the one before arrived, and gives back how they did."""
    frames: list[fp.Frame] = []
    for number in range(first, first + count):
        seq = camera.publish(image(number))
        assert seq is not None
        frame = eye.wait_for(seq, PATIENCE)
        assert frame is not None, (seq, eye.statistics())
        assert np.array_equal(frame.copy(), image(number))
        frames.append(frame)
    return frames


def joined(camera: fp.Producer, eye: fp.Consumer) -> None:
    """Publishes until a frame has come that none was sent after: from then on every one of them is accounted for.
    Five a second, which lap no ring while somebody pauses."""

    def arrived() -> bool:
        seq = camera.publish(image(0))
        return seq is not None and eye.wait_for(seq, 0.2) is not None

    wait_until(arrived)
