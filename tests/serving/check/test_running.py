"""Checks of running servers: ours, and a plain TorchServe."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from offpath.handler.prediction_log.sink_file import make_sink_folder_name, write_last_error
from offpath.handler.process.foreign_server import DECLARED_METRIC
from offpath.handler.serving_settings import ServingSettings
from offpath.serving.check.running import check_metrics, check_model, check_server, plan_again
from offpath.serving.finding import Finding, State
from offpath.serving.server.management import ModelStatus
from offpath.serving.servers_here import FoundServer
from offpath.serving.starting import start_server
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.support.answering_server import answering_server
from tests.support.echo_archive import MakeMar, make_settings
from tests.support.front import check_addresses

STATUS = ModelStatus("a", "1.0", "a.mar", 2, 2, 8, 1, 60, 60, ("READY",) * 2, (1, 2))
OURS = {"handler": "offpath", "prediction_log": "s3://a/b"}


def by_subject(findings: list[Finding], area: str) -> dict[str, Finding]:
    return {one.subject: one for one in findings if one.area == area}


@pytest.mark.server
def test_our_server_has_everything(server: TorchServe) -> None:
    # The /metrics address is that of `offpath serve`: tests/journeys.
    check_addresses([server.inference_url, server.management_url])
    findings = list(check_server(server.management_url))
    host = by_subject(findings, "server")
    for subject in ("collector", "heap", "metrics", "our metrics", "config.properties"):
        assert host[subject].state is State.OK, subject
    model = by_subject(findings, "near-free 1.0")
    assert model["device"].found == "cpu, eager fp32"
    assert model["batches"].found == "batch 8, delay 1 ms"
    assert model["queue"].found == "200 more requests may wait"
    assert "activation softmax" in model["handler settings"].found
    assert "image_size 224, " in model["handler settings"].found


@pytest.mark.server
def test_plain_torchserve_shows_what_it_lacks_and_its_worker_says_so_once(
    model_store: Path,
) -> None:
    settings = make_settings(model_store / "near-free.mar", stock=True)
    with start_server(settings) as plain:
        findings = list(check_server(plain.management_url))
        log = plain.log_path.read_text()
        workers = len(plain.worker_pids())
    lost = {one.subject for one in findings if one.state is State.LOST}
    assert {"collector", "heap", "our metrics", "request log", "metrics"} <= lost
    assert by_subject(findings, "near-free 1.0")["device"].state is State.OK
    for about in ("does not declare offpath's metrics", "takes four times the CPU"):
        assert len(re.findall(f"this server: .*{about}", log)) == workers


@pytest.mark.parametrize(
    ("changes", "subject", "state", "found"),
    [
        pytest.param(
            {"worker_states": ("READY", "UNLOADED")},
            "workers",
            State.WRONG,
            "1 of 2",
            id="one-ready",
        ),
        pytest.param({"batch_size": 1}, "batches", State.LOST, "never batched", id="no-batches"),
        pytest.param({}, "handler", State.LOST, "not offpath's", id="another-handler"),
        pytest.param(
            {"described": {**OURS, "log_problem": "EACCES"}},
            *("prediction log", State.WRONG, "EACCES"),
            id="log-not-written",
        ),
        pytest.param(
            {"described": {"handler": "offpath", "engines_lost": ["moved by 0.3"]}},
            *("engine not used", State.LOST, "moved by 0.3"),
            id="engine-of-the-archive-lost",
        ),
    ],
)
def test_state_of_a_model_is_found(changes: dict, subject: str, state: State, found: str) -> None:
    findings = [one for one in check_model(replace(STATUS, **changes), None)]
    assert [one.state for one in findings if one.subject == subject and found in one.found] == [
        state
    ]


def test_a_model_without_ready_workers_is_not_taken_for_another_handlers() -> None:
    findings = by_subject(list(check_model(replace(STATUS, worker_states=()), None)), "a 1.0")
    assert findings["workers"].state is State.WRONG and "handler" not in findings


def test_a_server_is_compared_with_its_plan_of_properties_and_archives(
    make_mar: MakeMar, tmp_path: Path
) -> None:
    archive, config = make_mar(config=None), tmp_path / "config.properties"
    asked = {"echo": {"1.0": {"batchSize": 16}}}
    # An address and a setting that only a TorchServe of others may have.
    others = "inference_address=unix:/run/i.sock\ndisable_token_authorization=false\n"
    config.write_text(f"{others}models={json.dumps(asked)}\n")
    command = ["java", "-s", str(archive.parent), "-f", str(config)]
    status = replace(STATUS, model_name="echo", model_url=archive.name)
    plan = plan_again(FoundServer(command, tmp_path), status)
    differing = by_subject(list(check_model(status, plan)), "echo 1.0")["batchSize"]
    assert differing.state is State.WRONG and "asks for 16" in str(differing.found)
    assert plan_again(FoundServer(command, tmp_path), replace(status, model_url="x.mar")) is None


def test_prediction_log_that_cannot_be_delivered_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / make_sink_folder_name("s3://a/b")
    folder.mkdir()
    write_last_error(folder, "refused", "refused with AccessDenied: allow s3:PutObject")
    described = {**OURS, "spool": str(tmp_path)}
    findings = list(check_model(replace(STATUS, described=described), None))
    (found,) = [one for one in findings if "AccessDenied" in str(one.found)]
    assert (found.subject, found.state) == ("prediction log", State.LOST)
    assert found.cure == f"offpath logs status --spool {tmp_path}"


def test_dropped_records_are_wrong() -> None:
    page = f"""{DECLARED_METRIC}{{a="b"}} 1
offpath_log_dropped_total{{ModelName="m",Level="Model",}} 2.0
offpath_log_dropped_total{{ModelName="n",Level="Model",}} 3.0
"""
    with answering_server() as answers:
        answers.body = page.encode()
        found = {one.subject: one for one in check_metrics(answers.url, "granian.log")}
    assert found["metrics"].state is State.OK
    dropped = found["records of the log"]
    assert dropped.state is State.WRONG and dropped.found.startswith("5 were dropped")


def test_a_worker_that_ends_while_it_is_asked_is_a_finding() -> None:
    """It ended the check with an error, in a drill."""
    workers = [{"status": "READY", "pid": 1}]
    model = {"modelName": "a", "modelVersion": "1.0", "modelUrl": "a.mar", "workers": workers}
    model |= ServingSettings().list_numbers()

    def respond(path: str, _: bytes) -> tuple[int, bytes]:
        if "customized" in path:
            return 500, b'{"code": 500, "message": "Worker died."}'
        listed = {"models": [{"modelName": "a", "modelUrl": "a.mar"}]}
        return 200, json.dumps(listed if path.startswith("/models?") else [model]).encode()

    with answering_server() as answers:
        answers.respond = respond
        findings = list(check_server(answers.url))
    (found,) = [one for one in findings if one.state is State.WRONG]
    assert found.subject == "workers" and "Worker died" in str(found.found)


def test_server_that_does_not_answer_is_wrong() -> None:
    (found,) = check_server("http://127.0.0.1:9")
    assert (found.subject, found.state) == ("management", State.WRONG)
    assert "read the end of torchserve.log or granian.log" in str(found.cure)
