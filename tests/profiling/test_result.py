from __future__ import annotations

import json

import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.result import BENCH, merge_results
from tests.profiling.results import make_measurement, make_result


def test_a_saved_result_reads_back_equal(tmp_path):
    path = tmp_path / "new" / "result.json"
    BENCH.save(make_result(), path)
    assert BENCH.load(path) == make_result()
    assert json.loads(path.read_text())["format"] == "offpath-bench/1"
    assert [entry.name for entry in path.parent.iterdir()] == ["result.json"]


def test_like_runs_merge_with_rounds_numbered_on():
    merged = merge_results(make_result(), make_result())
    assert merged.rounds == 6
    assert [m.round for m in merged.measurements] == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
        5,
        5,
    ]
    assert [limit.round for limit in merged.limits] == [0, 0, 3, 3]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        pytest.param(
            {"settings": {"clients": 16, "seconds": 10.0}},
            "settings.clients: 32, 16",
            id="other-clients",
        ),
        pytest.param(
            {"host": {"cpu": "other", "cores": 2, "packages": {"torch": "2.14.1"}}},
            "host.cpu",
            id="other-processor",
        ),
        pytest.param(
            {"host": {"cpu": "some", "cores": 2, "packages": {"torch": "2.15.0"}}},
            "host.packages.torch",
            id="other-torch",
        ),
        pytest.param(
            {
                "workloads": {
                    "photos": {"identity": "cd", "mean_bytes": 1000, "count": 32}
                }
            },
            "workloads.photos.identity",
            id="other-photographs",
        ),
        pytest.param(
            {"servers": {"torchserve-stock": {"stock": True}}},
            "servers.offpath",
            id="fewer-servers",
        ),
    ],
)
def test_unlike_runs_refuse_to_merge(changes, named):
    with pytest.raises(ExpectedError, match=f"cannot be merged.*{named}"):
        merge_results(make_result(), make_result(**changes))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("not json", id="not-json"),
        pytest.param("[]", id="not-an-object"),
        pytest.param('{"format": "other/1"}', id="other-format"),
        pytest.param('{"format": "offpath-bench/1", "limits": 3}', id="broken"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path, text):
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(ExpectedError, match="cannot read"):
        BENCH.load(path)


def test_raw_values_are_kept(tmp_path):
    result = make_result(
        measurements=[
            make_measurement(0, "torchserve-stock", 2, latencies_ms=[1.5, 2.25])
        ]
    )
    BENCH.save(result, tmp_path / "r.json")
    assert BENCH.load(tmp_path / "r.json").measurements[0].latencies_ms == [1.5, 2.25]
