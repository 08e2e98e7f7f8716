"""Journeys that take minutes: `scripts/test.sh --all -k long_journeys`."""

from __future__ import annotations

import pytest

from tests.journeys.conftest import LABELS
from tests.journeys.shell import Shell

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_resnet50_gets_the_fast_engine_by_itself(shell: Shell) -> None:
    shell.run(
        *("archive", "--model", "torchvision:resnet50", "--weights", "resnet.pt"),
        *("--labels", "classes.txt", "--name", "six", "--output", "long"),
    )
    with shell.serve("long", "--management-port", 0) as ready:
        assert ready["models"][0]["described"]["engine"] == "openvino"
        said = shell.run_json("predict", "part.jpg", "--url", ready["inference"])
        assert said["status"] == 200 and set(said["labels"]) <= set(LABELS)
        findings = shell.run_json("check", "--url", ready["management"])
        assert "wrong" not in {one["state"] for one in findings}
