"""`framepool spark dataset`: frames as shards for training, in Parquet, divided into splits, with a manifest.

A frame goes into a split by what it is, not by chance: the same recording, seed and shares give the same splits,
wherever and however often the job runs. Neighbours in time look alike, so blocks of frames stay together. The shards
are written by executors side by side, and the directory appears as a whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from framepool.errors import ConfigurationError, RecordingError
from framepool.recorder.manifest import Manifest, sync_directory, write_whole
from framepool.spark.frames import SparkFrame, frames_in, needed_columns
from framepool.spark.jobs.job import JobConfig, account, read
from framepool.spark.tensors import tensor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT: Final = 1
KEYS: Final = ("ordinal", "stream_id", "epoch", "seq", "timestamp_ns", "recorded_ns")
SCHEMA: Final = pa.schema(
    [
        *(pa.field(name, pa.int64(), nullable=False) for name in KEYS),
        pa.field("dtype", pa.string(), nullable=False),
        pa.field("shape", pa.list_(pa.int64()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""Of a shard: `numpy.frombuffer(payload, dtype).reshape(shape)` is the frame, in row-major order."""
WRITTEN: Final = "split string, file string, frames bigint, bytes bigint, sha256 string, first bigint, last bigint"
ROW_GROUP_BYTES: Final = 8 * 2**20


class DatasetConfig(JobConfig, frozen=True, kw_only=True):
    """What `dataset` is asked for."""

    splits: str = "train=0.8,val=0.1,test=0.1"
    """Names and shares, with commas between; shares of 1 in all."""
    seed: int = 0
    """Another seed, other splits."""
    block: Annotated[int, msgspec.Meta(ge=1)] = 1
    """So many frames that follow each other go into the same split."""
    shard_bytes: Annotated[int, msgspec.Meta(ge=1)] = 256 * 2**20
    """About so much payload in a shard."""
    compression: Literal["none", "zstd", "snappy"] = "none"

    def shares(self) -> dict[str, float]:
        """The splits; `ConfigurationError` if they are none."""
        try:
            named = [each.partition("=") for each in self.splits.split(",")]
            found = {name.strip(): float(share) for name, _, share in named}
        except ValueError:
            raise ConfigurationError(f"splits are name=share, with commas between, not {self.splits!r}") from None
        plain = all(name.isidentifier() and share > 0 for name, share in found.items())
        if not plain or len(found) != len(named) or abs(sum(found.values()) - 1) > 1e-9:
            raise ConfigurationError(f"splits need different names and shares of 1 in all, not {self.splits!r}")
        return found


def run(spark: SparkSession, config: DatasetConfig) -> dict[str, Any]:
    """Makes `OUT/dataset` with a directory for each split and `manifest.json`, and says how many frames each has."""
    target, shares = config.table("dataset"), config.shares()
    if os.path.exists(target):
        raise RecordingError(f"{target} is there already: name another OUT")
    staging = config.table(f".dataset.{uuid.uuid4().hex}")
    for name in shares:
        os.makedirs(os.path.join(staging, name))
    frames = read(spark, config)
    columns = dict.fromkeys((*needed_columns(frames.columns), *KEYS))
    writer = Sharding(staging, shares, config)
    try:
        rows = frames.select(*columns).mapInArrow(writer, WRITTEN).collect()
        shards = [row.asDict() for row in sorted(rows, key=lambda row: row["first"])]
        manifest = place(staging, shares, shards, config)
        os.rename(staging, target)
        sync_directory(Path(target).parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    counts = {name: split["frames"] for name, split in manifest["splits"].items()}
    problems = account(spark, config, sum(counts.values()))
    return {"frames": sum(counts.values()), **counts, "problems": problems, "dataset": target}


class Sharding:
    """Writes the shards of a task: what `mapInArrow` calls."""

    def __init__(self, directory: str, shares: dict[str, float], config: DatasetConfig) -> None:
        self._directory = directory
        self._names = list(shares)
        self._edges = np.cumsum(list(shares.values()))[:-1]
        self._config = config

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shards: dict[str, Shard] = {}
        made: list[dict[str, Any]] = []
        for frame in frames_in(batches, strict=self._config.strict):
            name = self._names[int(np.searchsorted(self._edges, chance(frame.row, self._config), "right"))]
            if name not in shards:
                shards[name] = Shard(self._directory, name, self._config.compression)
            shards[name].add(frame)
            if shards[name].bytes >= self._config.shard_bytes:
                made.append(shards.pop(name).close())
        made += [shard.close() for shard in shards.values()]
        if made:
            yield pa.RecordBatch.from_pylist(made)


class Shard:
    """One file of frames, in the order of the recording."""

    def __init__(self, directory: str, split: str, compression: str) -> None:
        self.bytes = 0
        self._split = split
        self._path = os.path.join(directory, split, f"part-{uuid.uuid4().hex}.parquet")
        self._file = pq.ParquetWriter(self._path, SCHEMA, compression=compression, use_dictionary=False)
        self._rows: list[dict[str, Any]] = []
        self._gathered = 0
        self._frames = 0
        self._first: int | None = None
        self._last = 0

    def add(self, frame: SparkFrame) -> None:
        row = {name: frame.row[name] for name in KEYS} | tensor(frame.array)
        self._first = row["ordinal"] if self._first is None else self._first
        self._rows.append(row)
        self._frames += 1
        self._last = row["ordinal"]
        self._gathered += len(row["payload"])
        self.bytes += len(row["payload"])
        if self._gathered >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> dict[str, Any]:
        """Ends the file; what the manifest says of it."""
        self._flush()
        self._file.close()
        with open(self._path, "rb+") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        return {
            "split": self._split,
            "file": os.path.basename(self._path),
            "frames": self._frames,
            "bytes": self.bytes,
            "sha256": digest,
            "first": self._first,
            "last": self._last,
        }

    def _flush(self) -> None:
        if self._rows:
            self._file.write_table(pa.Table.from_pylist(self._rows, SCHEMA))
        self._rows, self._gathered = [], 0


def chance(row: dict[str, Any], config: DatasetConfig) -> float:
    """Where a frame falls between 0 and 1: the same for all frames of a block, even over blocks."""
    words = (config.seed, row["stream_id"], row["epoch"], row["seq"] // config.block)
    digest = hashlib.blake2b(np.array(words, np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def place(
    directory: str, shares: dict[str, float], shards: list[dict[str, Any]], config: DatasetConfig
) -> dict[str, Any]:
    """Gives shards their names, removes what failed tasks left, and writes the manifest."""
    splits: dict[str, Any] = {}
    for name, share in shares.items():
        mine = [each for each in shards if each["split"] == name]
        listed = []
        for number, each in enumerate(mine):
            file = f"{name}-{number:05}-of-{len(mine):05}.parquet"
            os.rename(os.path.join(directory, name, each["file"]), os.path.join(directory, name, file))
            listed.append({
                "file": f"{name}/{file}", "frames": each["frames"], "payload_bytes": each["bytes"],
                "sha256": each["sha256"], "first_ordinal": each["first"], "last_ordinal": each["last"],
            })  # fmt: skip
        for left in os.listdir(os.path.join(directory, name)):
            if left.startswith("part-"):
                os.unlink(os.path.join(directory, name, left))
        total = {key: sum(each[key] for each in listed) for key in ("frames", "payload_bytes")}
        splits[name] = {"share": share, **total, "shards": listed}
    manifest = {
        "format": FORMAT,
        "recording": config.recording,
        "recording_id": Manifest(config.recording).info().recording_id,
        "created_ns": time.time_ns(),
        "seed": config.seed,
        "block": config.block,
        "columns": {field.name: str(field.type) for field in SCHEMA},
        "splits": splits,
    }
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    write_whole(Path(directory, "manifest.json"), text, durable=True)
    return manifest
