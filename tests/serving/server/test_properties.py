"""Settings of models in config.properties: ours are those that a real TorchServe has in force."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offpath.errors import WrongOption
from offpath.handler.serving_settings import RANGES, ServingSettings
from offpath.serving.server.plan import plan_server
from offpath.serving.server.properties import load_properties, parse_properties, read_properties
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.starting import start_server
from tests.support.echo_archive import make_settings, write_mar

FULL = {"minWorkers": 2, "maxWorkers": 3, "batchSize": 4, "maxBatchDelay": 5}
# The model-config.yaml of each archive.
ARCHIVES: dict[str, dict[str, Any] | None] = {
    "without": None,
    "empty": {},
    "full": {**FULL, "responseTimeout": 20},
    "one-number": {"minWorkers": 2, "batchSize": 6},
    "no-numbers": {"batchSize": "8", "maxBatchDelay": 0, "minWorkers": 3, "maxWorkers": 2},
    "not-named": None,
}
GIVEN = {"batchSize": 7, "maxBatchDelay": 11, "responseTimeout": 33, "startupTimeout": 44}
MODELS = {
    "without": {"1.0": {**GIVEN, "minWorkers": 1}, "2.0": {"batchSize": 9}},
    "empty": {"1.0": {**GIVEN, "minWorkers": 1, "maxWorkers": 2}},
    "full": {"1.0": {**GIVEN, "minWorkers": 1, "maxWorkers": 1}},
    "one-number": {"1.0": {**GIVEN, "maxWorkers": 3}},
    "no-numbers": {"1.0": {**GIVEN, "maxBatchDelay": -1}},
}
STATE = {**GIVEN, "minWorkers": 1, "maxWorkers": 5, "runtimeType": "python"}
SNAPSHOT = {
    "name": "startup.cfg",
    "modelCount": 2,
    "models": {
        "full": {"1.0": {**STATE, "defaultVersion": True, "marName": "full.mar"}},
        "other": {"1.0": {**STATE, "defaultVersion": True, "marName": "without.mar"}},
    },
}
DEFAULTS = {"default_workers_per_model": "1", "default_response_timeout": "77"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store")
    for name, config in ARCHIVES.items():
        write_mar(store, name, config)
    return store


def list_settings(settings: ServerSettings) -> dict[str, dict[str, int]]:
    """Returns what Granian would have in force."""
    models = plan_server(replace(settings, server="granian")).models
    return {model.name: model.settings.list_numbers() | {"": len(model.slots)} for model in models}


@pytest.mark.server
@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({"models": json.dumps(MODELS)}, id="models"),
        pytest.param(
            {"model_snapshot": json.dumps(SNAPSHOT)}, id="snapshot", marks=pytest.mark.slow
        ),
    ],
)
def test_the_settings_in_force_are_those_of_torchserve(
    store: Path, properties: dict[str, str]
) -> None:
    entries = load_properties(None, properties).list_wanted() or [
        f"{name}.mar" for name in ARCHIVES
    ]
    settings = replace(
        make_settings(*[store / entry for entry in entries]),
        models=tuple(entries),
        overrides={**DEFAULTS, **properties, "disable_token_authorization": "true"},
    )
    wanted = list_settings(settings)
    with start_server(settings) as server, server.management() as management:
        for name, expected in wanted.items():
            (status,) = management.describe(name)
            found = ServingSettings(**{one: getattr(status, one) for one in RANGES})
            workers = {"": len(status.worker_pids)}
            assert found.list_numbers() | workers == expected, name


def test_a_snapshot_names_the_archives_and_its_default_versions_first() -> None:
    two = {
        "1.0": {"marName": "a.mar"},
        "2.0": {"marName": "b.mar", "defaultVersion": True},
    }
    snapshot = json.dumps({"models": {"m": two}})
    properties = load_properties(None, {"model_snapshot": snapshot, "load_models": "x"})
    assert properties.list_wanted() == ["m=b.mar", "m=a.mar"]


@pytest.mark.parametrize(
    ("load_models", "wanted"),
    [("all", []), ("ALL", []), ("", []), ("a.mar,b=c", ["a.mar", "b=c"])],
)
def test_load_models_names_archives(load_models: str, wanted: list[str]) -> None:
    assert load_properties(None, {"load_models": load_models}).list_wanted() == wanted


@pytest.mark.parametrize("text", ["{", "[]", '{"m": 1}', '{"m": {"1.0": 2}}', "[" * 100_000])
def test_settings_of_another_form_are_refused(store: Path, text: str) -> None:
    settings = ServerSettings(store, ("full.mar",), overrides={"models": text})
    with pytest.raises(WrongOption, match="config.properties: models is .* expected JSON"):
        plan_server(settings)


def test_comments_spaces_and_later_lines() -> None:
    text = "# why\n! also\n\n a = 1 \nb=x=y\na=2\n"
    assert parse_properties(text) == {"a": "2", "b": "x=y"}


def test_backslash_continues_a_line() -> None:
    text = 'models={\\\n  "echo": {}\\\n}\nnext=1'
    assert parse_properties(text) == {"models": '{"echo": {}}', "next": "1"}


def test_line_without_equals_sign_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text("a=1\nbatch_size 8\n")
    with pytest.raises(WrongOption, match=r"config.properties, line 2: 'batch_size 8'"):
        read_properties(path)


def test_missing_file_is_an_expected_error(tmp_path: Path) -> None:
    with pytest.raises(WrongOption, match="cannot read"):
        read_properties(tmp_path / "absent")
