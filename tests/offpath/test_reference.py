"""docs/reference.md says what the code does."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import yaml

from offpath.cli import main
from offpath.handler import error_kinds, errors
from offpath.handler.config import HandlerConfig
from scripts.command_list import list_commands
from tests.offpath.conftest import read_json_keys

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
METRICS = Path(__file__).parents[2] / "serving" / "conf" / "metrics.yaml"
TEXT = PAGE.read_text(encoding="utf-8")


def section_under(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows_under(heading: str) -> list[list[str]]:
    """Returns the cells of the tables of one section, without their heads."""
    lines = [line for line in section_under(heading).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_every_setting_is_named_with_its_default() -> None:
    said = {row[0].strip("` "): row[1] for row in rows_under("Settings of the handler")}
    settings = {
        field.name: json.dumps(getattr(HandlerConfig(), field.name)).strip('"')
        for field in dataclasses.fields(HandlerConfig)
        if field.name != "prediction_log"
    }
    assert said.pop("prediction_log") == "off"
    assert {name: default.strip("`") for name, default in said.items()} == settings


def test_every_status_of_an_item_is_named() -> None:
    section = section_under("Requests and answers")
    points = re.findall(r"^- (\d{3}): (.+(?:\n  .+)*)", section, re.MULTILINE)
    said = [(status, name) for status, text in points for name in re.findall(r"`([A-Z]\w+)`", text)]
    assert len(said) == len(set(said))
    of_items = {
        (str(kind.status), kind.__name__)
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.ItemError)
        and kind is not errors.ItemError
    }
    of_workers = {
        (str(kind.status), kind.type)
        for kind in (error_kinds.WORKER_DIED, error_kinds.ENDS_WORKERS)
    }
    assert set(said) == of_items | of_workers


def test_every_json_output_is_named() -> None:
    """The tests of the commands compare their outputs with `read_json_keys`."""
    with_json = {
        path.removeprefix("offpath ")
        for path, command, _ in list_commands(main, "offpath")
        if any("--json" in option.opts for option in command.params)
    }
    assert set(read_json_keys()) == with_json


def test_every_metric_of_the_handler_is_named_with_its_dimensions() -> None:
    declared = yaml.safe_load(METRICS.read_text())["model_metrics"]
    ours = {
        metric["name"]: [d for d in metric["dimensions"] if d != "ModelName"]
        for kind in declared.values()
        for metric in kind
        if metric["name"].startswith("offpath_")
    }
    # As in `offpath_errors_total{Type}`.
    found = re.findall(r"`(offpath_\w+)(?:\{([\w,]+)\})?`", section_under("Metrics"))
    named = {name: dimensions.split(",") if dimensions else [] for name, dimensions in found}
    assert ours.items() <= named.items()
