"""What a recording holds, and what comes out of it when it is played again, as journals tell it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from framepool.agent import AgentTerminated
from framepool.client.consumer import Consumer
from framepool.client.pool import Pool
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig
from framepool.driver.driver import ShmDriver
from framepool.errors import FrameOverwritten
from framepool.recorder.recording import Recording
from framepool.recorder.replay import Replay
from framepool.testing.journal import Journal
from framepool.testing.members import crc_of, seal_of
from framepool.transport.settings import AeronSettings

PATIENCE = 10.0
"""Seconds for a frame that was published to arrive."""


def journal_recording(recording: Recording, journal: Journal) -> None:
    """Every frame that is recorded, each checked against the crc that it was stored with, and every row of the loss
    table. The frames are those of `members.Sealing`."""
    for frame in recording:
        frame.check()
        words = frame.array
        journal.recorded(frame.stream_id, frame.epoch, frame.seq, crc_of(words), seal_of(words))
    for row in recording.losses():
        loss = row.loss
        journal.unrecorded(loss.stream_id, loss.epoch, loss.first_seq, -1 if loss.frames is None else loss.frames)


def journal_replay(recording: Recording, journal: Journal, directory: Path) -> None:
    """Plays each stream again, all of it, to a reader that waits for every frame; on a driver of its own whose files
    are in `directory`."""
    with playground(directory) as pool:
        for stream_id in recording.streams:
            with pool.producer(stream_id) as producer, pool.consumer(stream_id) as consumer:
                replay = Replay(recording, {stream_id: producer}, speed=0)
                with contextlib.suppress(AgentTerminated):
                    while replay.do_work():
                        _read(consumer, producer.counts["published"], journal)
                _read(consumer, producer.counts["published"], journal)


def _read(consumer: Consumer, published: int, journal: Journal) -> None:
    """Takes what was published until now."""
    while consumer.counts["received"] < published:
        if not consumer.wait(PATIENCE):
            return  # what is missing then is for the checker to say
        for frame in consumer.poll():
            with contextlib.suppress(FrameOverwritten):
                words = frame.copy()
                sealed = seal_of(words)
                journal.replayed(sealed.stream_id, sealed.epoch, sealed.seq, crc_of(words))


@contextlib.contextmanager
def playground(directory: Path) -> Iterator[Pool]:
    """A driver and a connection to it that nobody else knows of."""
    pools = tuple(PoolConfig(pool_id=number, stride_bytes=stride) for number, stride in ((1, 4096), (2, 65_536)))
    config = msgspec.structs.replace(
        Config(),
        aeron=AeronSettings(directory=str(directory / "aeron")),
        driver=DriverConfig(shm_base_dir=str(directory), announce_period_ms=100, lease_expiry_ms=0),
        profiles={"default": ProfileConfig(nslots=256, pools=pools)},
    )
    with ShmDriver(config).start(), Pool(config) as pool:
        yield pool
