"""A program for `spark-submit`: a function on the frames of a recording, on whichever worker.

Usage: cluster_program.py RECORDING
"""

import json
import sys
from pathlib import Path
from typing import Any


def main(recording: str) -> None:
    from pyspark.sql import SparkSession

    from framepool._native.crc32c import crc32c
    from framepool.spark.frames import map_frames

    spark = SparkSession.builder.appName("framepool on a cluster").getOrCreate()

    def look(array: Any) -> tuple[int, str]:
        return crc32c(array.tobytes("A")), Path.cwd().parents[1].name  # worker-N/application/executor

    frames = spark.read.format("framepool").option("partitionBytes", 4_000).load(recording)
    rows = map_frames(frames, look, "seen bigint, worker string", keys=("ordinal",), strict=True)
    print("FOUND " + json.dumps([list(row) for row in rows.collect()]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
