"""One Spark session for all tests here, and recordings that are awkward to read."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import framepool as fp
from framepool.config import load
from tests.support.awkward import Awkward, Harmed, write_awkward, write_harmed
from tests.support.drivers import table, write_toml
from tests.support.streaming import Camera

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


@pytest.fixture(scope="session")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> Harmed:
    """One with a flipped bit in its first segment, and a third one that is cut off and has no index. Not to be
    changed."""
    return write_harmed(tmp_path_factory.mktemp("harmed") / "recording")


@pytest.fixture
def config_file(base_dir: Path) -> Path:
    values = table(base_dir)
    values["profiles"]["default"] = {"nslots": 64, "pools": [{"pool_id": 1, "stride_bytes": 8192}]}
    return write_toml(base_dir / "framepool.toml", values)


@pytest.fixture
def camera(config_file: Path) -> Iterator[Camera]:
    """A driver, and a camera that goes on from test to end."""
    with fp.serve(load(config_file)) as pool:
        camera = Camera(pool)
        camera.start()
        yield camera
        camera.end()
