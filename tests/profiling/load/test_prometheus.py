"""TorchServe's metrics page as numbers."""

from __future__ import annotations

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.load.prometheus import parse_metrics, read_metrics
from tests.support.answering_server import answering_server

# As TorchServe 0.12.0 wrote it: labels end in a comma, a counter's name need not end in _total.
PAGE = """\
# HELP offpath_batches_total Torchserve prometheus counter metric with unit: Count
# TYPE offpath_batches_total counter
offpath_batches_total{ModelName="classifier",Hostname="vm",} 5.0
# HELP offpath_stage_seconds_total Torchserve prometheus counter metric with unit: Seconds
# TYPE offpath_stage_seconds_total counter
offpath_stage_seconds_total{ModelName="classifier",Stage="read",Hostname="vm",} 1.13205E-4
offpath_stage_seconds_total{ModelName="classifier",Stage="decode",Hostname="vm",} 0.013906581
offpath_stage_seconds_total{ModelName="other",Stage="decode",Hostname="vm",} 0.5
# HELP ts_queue_latency_microseconds Torchserve prometheus counter metric with unit: Microseconds
# TYPE ts_queue_latency_microseconds counter
ts_queue_latency_microseconds{model_name="classifier",model_version="default",hostname="vm",} 12085.466
# HELP PredictionTime Torchserve prometheus histogram metric with unit: ms
# TYPE PredictionTime histogram
PredictionTime_bucket{ModelName="classifier",Level="Model",Hostname="vm",le="10.0",} 3.0
PredictionTime_bucket{ModelName="classifier",Level="Model",Hostname="vm",le="+Inf",} 5.0
PredictionTime_count{ModelName="classifier",Level="Model",Hostname="vm",} 5.0
PredictionTime_sum{ModelName="classifier",Level="Model",Hostname="vm",} 99.81
# HELP WorkerThreadTime Torchserve prometheus gauge metric with unit: Milliseconds
# TYPE WorkerThreadTime gauge
WorkerThreadTime{Level="Host",Hostname="vm",} 1.0
"""  # noqa: E501


def test_a_torchserve_page_is_read():
    page = parse_metrics(PAGE, at_s=7.0)
    assert page.at_s == 7.0
    assert page.total("offpath_batches_total", ModelName="classifier") == 5
    assert page.total("PredictionTime_sum") == 99.81
    assert page.total("WorkerThreadTime") == 1
    assert page.by_label("offpath_stage_seconds_total", "Stage", ModelName="classifier") == {
        "read": 1.13205e-4,
        "decode": 0.013906581,
    }


def test_another_format_is_said():
    with pytest.raises(ExpectedError, match="not in Prometheus' text format.*<html>"):
        parse_metrics("<html> no metrics </html>", at_s=0)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        pytest.param("http://127.0.0.1:9/metrics", "no metrics at", id="refused"),
        pytest.param("nonsense", "no metrics at 'nonsense'", id="no-url"),
    ],
)
def test_a_page_that_is_not_there_is_said(url, said):
    with pytest.raises(ExpectedError, match=said):
        read_metrics(url)


def test_an_error_status_is_said():
    with answering_server() as server:
        server.status = 404
        with pytest.raises(ExpectedError, match="answered 404 instead of metrics"):
            read_metrics(server.url)
