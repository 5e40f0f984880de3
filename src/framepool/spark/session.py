"""A Spark session that suits frames, and one clear line where Spark cannot start.

Everything in this package works on any session; this one has the settings that were measured to help: small Arrow
batches, sockets of the file system between Spark and its Python workers, and filters pushed down.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from framepool.errors import LibraryMissing
from framepool.spark.java import choose_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {
    "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


def session(
    master: str = "local[*]", *, name: str = "framepool", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on this master, or `LibraryMissing` with what to install. Ask for it once; stop it yourself."""
    check()
    from pyspark.sql import SparkSession

    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def check() -> None:
    """Raises `LibraryMissing` if there is no PySpark, or no Java that it could run on."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise LibraryMissing("Spark needs PySpark: pip install 'framepool[spark]'") from None
    choose_java()
