"""What `stats` costs over much data: as much a byte as over little."""

from __future__ import annotations

import pytest

from benchmarks import spark as bench

pytestmark = [pytest.mark.requires("java"), pytest.mark.soak, pytest.mark.timeout(3600)]

SIZES = (1, 4, 16)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_stats_over_sixteen_gib_cost_as_much_a_byte_as_over_one() -> None:
    """Files were read just before, and are in the page cache as far as that holds 16 GiB."""
    with bench.recording(max(SIZES)) as path:
        spark = bench.Spark(path)
        try:
            spark.stats(bench.GIB // 8 // bench.FRAME)  # a session that is warm
            rows = bench.linear(spark, SIZES)
        finally:
            spark.close()
    for row in rows:
        assert row.ok, row
