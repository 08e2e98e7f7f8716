from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from offpath.commands.serve_options import check_host
from offpath.errors import ExpectedError
from offpath.serving.front.door_settings import DoorSettings
from tests.guarantees import guarantee
from tests.offpath.conftest import Run
from tests.offpath.no_processes import forbid_processes
from tests.support.echo_archive import write_mar


@guarantee(
    "Ports open to strangers",
    "offpath/commands/serve_options.py",
    "or ports.is_loopback(host)",
    "or True",
)
@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.org"])
def test_a_server_without_the_door_is_for_this_machine(host: str) -> None:
    for loopback in ("127.0.0.1", "localhost"):
        check_host(loopback)
    check_host(host, behind_proxy=True)
    with pytest.raises(ExpectedError, match="--host 127.0.0.1 keeps .*, --front --tokens FILE"):
        check_host(host)


def test_an_address_for_others_needs_the_doors_tokens() -> None:
    check_host("0.0.0.0", DoorSettings(tokens=Path("tokens")))
    check_host("::1", DoorSettings())
    with pytest.raises(ExpectedError, match="this machine, --tokens FILE"):
        check_host("0.0.0.0", DoorSettings())


PROPERTIES = """
inference_address=http://127.0.0.1:8085
metrics_address=http\\://127.0.0.1\\:8087
management_address=http://{management}
load_models=one.mar
enable_envvars_config=true
"""


@pytest.mark.parametrize(
    ("management", "kept"),
    [
        pytest.param("127.0.0.1:8086", 8086, id="own-port"),
        # Management stays a socket unless it is for this machine, at a port of its own.
        pytest.param("0.0.0.0:8086", None, id="for-all"),
        pytest.param("127.0.0.1:8085", None, id="of-predictions"),
    ],
)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param("", ("127.0.0.1", 8085, 8087, ("one.mar",)), id="of-the-file"),
        pytest.param("--port 1 --host localhost", ("localhost", 1, 8087, ("one.mar",)), id="port"),
        pytest.param("two --metrics-port 2", ("127.0.0.1", 8085, 2, ("two.mar",)), id="names"),
        pytest.param("TS_LOAD_MODELS=all", (*("127.0.0.1", 8085, 8087), ("one.mar", "two.mar"))),
        pytest.param(
            "TS_METRICS_ADDRESS=http://127.0.0.1", ("127.0.0.1", 8085, 8082, ("one.mar",))
        ),
    ],
)
def test_options_win_over_config_properties(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    expected: object,
    management: str,
    kept: int | None,
) -> None:
    for name in ("one", "two"):
        write_mar(tmp_path / "store", name)
    (tmp_path / "config.properties").write_text(PROPERTIES.replace("{management}", management))
    variable, _, value = options.rpartition("=")
    if variable:
        monkeypatch.setenv(variable, value)
        options = ""
    config, store = tmp_path / "config.properties", tmp_path / "store"
    options += " --server granian --front --dry-run --json"
    done = run("serve", "--config", config, "--model-store", store, *options.split())
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    models = tuple(Path(model["archive"]).name for model in plan["models"])
    assert (plan["host"], plan["port"], plan["metrics_port"], models) == expected
    assert plan["management_port"] == kept


CONFIG = {"batchSize": 2, "minWorkers": 1, "maxWorkers": 1}


@pytest.mark.parametrize(
    ("properties", "config", "environ", "said"),
    [
        pytest.param("maxWorkers=3", CONFIG, "", "ignores maxWorkers there", id="ignored"),
        pytest.param(
            *("max_request_sise=3", CONFIG, ""),
            "unknown key 'max_request_sise'; did you mean max_request_size; correct it",
            id="property",
        ),
        pytest.param(
            *('models={"one": {"1.0": {"batchsize": 3}}}', CONFIG, ""),
            "unknown key 'batchsize'; did you mean batchSize",
            id="models",
        ),
        pytest.param(
            *("", {**CONFIG, "batch_size": 8}, ""),
            "one.mar: unknown key 'batch_size'; did you mean batchSize",
            id="archive",
        ),
        pytest.param(
            *("", CONFIG, "OFFPATH_PREDICTON_LOG"),
            "unknown variable OFFPATH_PREDICTON_LOG; did you mean OFFPATH_PREDICTION_LOG",
            id="variable",
        ),
    ],
)
def test_a_setting_that_nothing_reads_is_refused_or_shown(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    properties: str,
    config: dict[str, int],
    environ: str,
    said: str,
) -> None:
    write_mar(tmp_path / "store", "one", config)
    (tmp_path / "my.properties").write_text(properties)
    if environ:
        monkeypatch.setenv(environ, "off")
    options = ("--dry-run", "--config", tmp_path / "my.properties")
    options += ("--model-store", tmp_path / "store")
    refused = run("serve", *options)
    assert refused.code == 2 and said in refused.err
    assert refused.err.endswith("; --lenient starts all the same\n")
    done = run("serve", "--lenient", *options)
    assert done.code == 0 and said in done.err


def test_a_setting_of_the_archives_own_handler_is_no_mistake(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mar(tmp_path / "store", "one", {**CONFIG, "temperature": 2, "torchrun": {"nproc": 1}})
    # Kubernetes sets these for a Service of the name offpath.
    for name in ("SERVICE_HOST", "SERVICE_PORT_METRICS", "PORT", "PORT_8080_TCP_ADDR"):
        monkeypatch.setenv(f"OFFPATH_{name}", "1")
    assert run("serve", "--dry-run", "--model-store", tmp_path / "store").err == ""


@pytest.mark.parametrize(
    ("by", "warning"),
    [
        pytest.param((), "behind a proxy or a balancer all clients have the same", id="by-address"),
        pytest.param(("--canary-by", "x-user-id"), "", id="by-header"),
    ],
)
def test_a_canary_by_address_is_warned_of(
    run: Run, tmp_path: Path, by: tuple[str, ...], warning: str
) -> None:
    second = write_mar(tmp_path, "second", version="2.0")
    archives = (write_mar(tmp_path, "one"), f"one={second}")
    options = ("--dry-run", *archives, "--canary", "one=2.0:5%", *by)
    done = run("serve", "--front", *options)
    assert done.code == 0 and warning in done.err and bool(warning) == bool(done.err)
    assert run("serve", "--front", "--behind-proxy", *options).code == (2 if warning else 0)


@pytest.mark.parametrize(
    ("options", "queue"),
    [
        pytest.param("--server torchserve", 150, id="torchserve"),
        pytest.param("--server torchserve --front", 150, id="door"),
        # Which takes bodies by name.
        pytest.param("--server granian --front", 1000, id="granian-behind-the-door"),
        pytest.param("--server granian --no-front", 150, id="granian"),
    ],
)
def test_a_dry_run_prints_what_would_be_served_and_starts_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, queue: int
) -> None:
    forbid_processes(monkeypatch)
    archive = write_mar(tmp_path, "one", {"batchSize": 3})
    config = tmp_path / "my.properties"
    models = {"one": {"1.0": {"minWorkers": 2, "maxWorkers": 2, "batchSize": 5}}}
    config.write_text(f"job_queue_size=150\nmodels={json.dumps(models)}")
    done = run("serve", archive, "--config", config, "--dry-run", *options.split())
    plan = yaml.safe_load(done.out)
    (model,) = plan["models"]
    assert (plan["queue"], model["batchSize"], model["minWorkers"]) == (queue, 3, 2)
    assert model["archive"] == str(archive)
    assert ("door" in plan) == (options.endswith("--front"))
    assert plan["notes"] == ["one.mar: served as it is, not optimised"]


DOOR_OPTIONS = """
--host localhost --port 1 --metrics-host localhost --metrics-port 2 --verbose --drain-s 3
--tls-cert {file} --tls-key {file} --tokens {file} --client-ids --explanations --invocations
--front-memory /tmp --unready-s 4 --allow-host a.example --also-port 5
--limit queue=6 --limit client-connections=7 --limit client-rate=8 --limit client-timeout-s=9
--limit front-bodies=10 --busy-status 429 --canary one=2.0:5% --canary-by x-user-id
"""


def test_every_option_of_the_door_reaches_its_settings(run: Run, tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("0123456789abcdef")
    archives = [f"one={write_mar(tmp_path, v, version=v)}" for v in ("1.0", "2.0")]
    options = DOOR_OPTIONS.format(file=file).split()
    done = run("serve", *archives, "--front", *options, "--dry-run", "--json")
    assert done.code == 0, done.err
    defaults = json.loads(json.dumps(asdict(DoorSettings()), default=str))
    door = json.loads(done.out)["door"]
    # Only the demo has pages, and a model with a canary has no shadow.
    same = {name for name, value in door.items() if value == defaults[name]}
    assert same == {"pages", "shadow"}
