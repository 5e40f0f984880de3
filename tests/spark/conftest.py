"""One Spark session for all tests here, and recordings that are awkward to read."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.awkward import Awkward, write_awkward

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Small and quick. Nothing that the source would need."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """An unmodified session as far as framepool goes."""
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("framepool tests")
    where = tmp_path_factory.mktemp("spark")
    for key, value in {**SETTINGS, "spark.local.dir": str(where), "spark.sql.warehouse.dir": str(where)}.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = builder.getOrCreate()
        yield started
        started.stop()


@pytest.fixture(scope="session")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Awkward:
    """A recording with every type, odd shapes, both orders, empty frames, epochs and gaps. Not to be changed."""
    return write_awkward(tmp_path_factory.mktemp("awkward") / "recording")


@pytest.fixture
def damaged(tmp_path: Path) -> Awkward:
    """One of the test's own, to be damaged."""
    return write_awkward(tmp_path / "recording")
