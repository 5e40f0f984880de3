"""What makes `spark.read.format("framepool")` known: Spark imports every top-level package `pyspark_…` and registers
its `DefaultSource`. There is nothing else here."""

from framepool.spark.source import FramepoolSource as DefaultSource

__all__ = ["DefaultSource"]
