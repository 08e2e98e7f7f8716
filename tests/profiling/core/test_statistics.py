"""Each statistic on data small enough to be computed manually, or against another library."""

from __future__ import annotations

import pytest

from offpath.profiling.core.statistics import Summary
from tests.profiling.runs import PHOTOS, make_run, make_window


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    run = make_run()
    for round_, (stock, ours) in enumerate([(100, 1000), (500, 2000), (100, 900)]):
        run.add(round_, "torchserve-stock", PHOTOS, make_window(stock))
        run.add(round_, "offpath", PHOTOS, make_window(ours))
    # A round that only one of them has counts for neither.
    run.add(3, "offpath", PHOTOS, make_window(9000))
    summary = Summary(run)
    # 10, 4 and 9; the medians' ratio is 15.
    assert summary.ratio("offpath", "torchserve-stock", PHOTOS) == 9.0
    assert summary.ratio("offpath", "nobody", PHOTOS) is None
    assert summary.ratio("offpath", "torchserve-stock", PHOTOS, "nothing") is None


def test_cpu_and_memory_count_the_servers_own_groups() -> None:
    run = make_run()
    failed = make_window(90, replies_503=10, **{"rss_bytes__fork helpers": 5e6})
    run.add(0, "offpath", PHOTOS, failed)
    run.add(0, "torchserve-stock", PHOTOS, make_window(100))
    value = Summary(run).value
    assert value("offpath", PHOTOS, "cpu_ms.workers") == pytest.approx(100)
    assert value("offpath", PHOTOS, "cpu_ms") == pytest.approx(125)
    assert value("offpath", PHOTOS, "rss_mb") == 35
    assert value("torchserve-stock", PHOTOS, "rss_mb") == 30
    assert value("offpath", PHOTOS, "pss_mb") is None
    assert value("offpath", PHOTOS, "failed") == 10
    assert value("torchserve-stock", PHOTOS, "failed") == 0
