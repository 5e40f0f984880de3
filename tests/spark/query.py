"""A streaming query in a process of its own, to be killed: a recording into Parquet.

Usage: query.py RECORDING OUT CHECKPOINT MASTER follow|finish; in small batches without end, or all there is.
"""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framepool._native.crc32c import crc32c

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

COLUMNS = ("ordinal", "epoch", "seq", "crc", "found")
"""Of the table: what was recorded, and the checksum of what an executor has seen."""


def start(
    spark: "SparkSession", recording: Path, out: Path, checkpoint: Path, most: int, **trigger: Any
) -> "StreamingQuery":
    """The same query wherever it runs: each frame is read where it lies, and its checksum is written down."""
    from framepool.spark.frames import map_frames

    def checksum(array: Any) -> int:  # within, so that Spark brings it along
        return crc32c(array.tobytes())

    frames = spark.readStream.format("framepool").option("maxFramesPerTrigger", most).load(str(recording))
    seen = map_frames(frames, checksum, "found bigint", keys=COLUMNS[:-1], strict=True)
    writer = seen.writeStream.format("parquet").option("path", str(out)).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start()


def main(recording: str, out: str, checkpoint: str, master: str, mode: str) -> None:
    from framepool.spark.session import session
    from tests.spark.conftest import SETTINGS

    warnings.simplefilter("ignore")
    spark = session(master, settings=SETTINGS)
    paths = Path(recording), Path(out), Path(checkpoint)
    if mode == "follow":
        query = start(spark, *paths, 40, processingTime="0 seconds")
    else:
        query = start(spark, *paths, 100_000, availableNow=True)
    print("started", flush=True)
    query.awaitTermination()
    print("finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
