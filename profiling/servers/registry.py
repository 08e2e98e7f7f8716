"""Servers under test by name, and variants of them with other settings: NAME=SERVER:KEY=VALUE;...

    offpath bench compare --servers offpath --baseline offpath \\
        --variant "heap buffers=offpath:prefer_direct_buffer=false" \\
        --variant "parallel=offpath:vmargs=-Xms2g -Xmx2g -XX:+UseParallelGC" \\
        --variant "alone=offpath:model.batch_size=1;handler.engine=eager"

SERVER is a TorchServe of the registry. Each KEY changes one thing; everything else stays as in
SERVER:

- a key of config.properties; `vmargs` replaces all of Java's options, `vmargs+` adds options;
- models: how many models are served from the archive; requests go to them in turn;
- model.batch_size, model.max_batch_delay_ms, model.workers: settings of the archive;
- handler.SETTING: a setting of our handler, with a value as in YAML;
- env.NAME: a variable of the server and its workers.

A value ends at the next `;`. Spaces around names and values do not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from offpath.archive.model_config import load_yaml, make_model_config
from offpath.errors import WrongOption
from offpath.handler.serving_settings import KEYS
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.servers.archives import build_naive, build_stock
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.mosec import Mosec, MosecNginx, MosecOffpathDecode
from offpath.profiling.servers.ray_serve import OffpathRay
from offpath.profiling.servers.server_adapter import BATCH_SIZE, Adapter, PackagedAdapter
from offpath.profiling.servers.torchserve import (
    TorchServeAdapter,
    as_it_is,
    make_stock_fixed,
    ours,
)
from offpath.profiling.servers.triton import (
    OffpathExportTriton,
    Triton,
    TritonNginx,
    TritonOffpathDecode,
)
from offpath.serving.server.properties import find_config, read_properties

# Name -> maker(model, cores).
SERVERS: dict[str, Callable[[ModelUnderTest, int], Adapter]] = {
    "offpath": ours("offpath", has_door=True),
    "offpath-direct": ours("offpath-direct"),
    "offpath-granian": ours("offpath-granian", server="granian", has_door=True),
    "offpath-granian-direct": ours("offpath-granian-direct", server="granian"),
    "offpath-s3": ours("offpath-s3", has_store=True),
    "torchserve-naive": as_it_is("torchserve-naive", build_naive),
    "torchserve-naive-s3": as_it_is("torchserve-naive-s3", build_naive, has_store=True),
    "torchserve-stock": as_it_is("torchserve-stock", build_stock),
    "granian-stock": as_it_is("granian-stock", build_stock, server="granian"),
    "torchserve-fixed": make_stock_fixed,
    "triton": Triton,
    "triton-offpath-decode": TritonOffpathDecode,
    "triton-nginx": TritonNginx,
    "offpath-export-triton": OffpathExportTriton,
    "offpath-ray": OffpathRay,
    "mosec": Mosec,
    "mosec-offpath-decode": MosecOffpathDecode,
    "mosec-nginx": MosecNginx,
}

# Name -> environment that `offpath bench setup` installs; the other servers need none.
ENVIRONMENTS: dict[str, Environment] = {
    name: make.environment
    for name, make in SERVERS.items()
    if isinstance(make, type) and issubclass(make, PackagedAdapter)
}
MAX_MODELS = 64
VARIANT_FORM = "NAME=SERVER:KEY=VALUE;KEY=VALUE"
VMARGS, MORE_VMARGS, MODELS = "vmargs", "vmargs+", "models"
# The keys of TorchServe's ConfigManager.java that a benchmark can vary. It sets addresses, ports,
# model store and models itself.
CONFIG_KEYS = frozenset("""
    async_logging cpu_launcher_args cpu_launcher_enable decode_input_request
    default_response_timeout default_startup_timeout default_workers_per_model
    disable_system_metrics enable_metrics_api io_ratio ipex_enable job_queue_size
    limit_max_image_pixels max_request_size max_response_size metric_time_interval
    metrics_mode model_metrics_auto_detect netty_client_threads number_of_gpu
    number_of_netty_threads prefer_direct_buffer unregister_model_timeout use_native_io
    vmargs vmargs+
    """.split())
# Name here -> TorchServe's in model-config.yaml.
MODEL_KEYS = {
    "batch_size": (KEYS["batch_size"],),
    "max_batch_delay_ms": (KEYS["max_batch_delay_ms"],),
    "workers": (KEYS["min_workers"], KEYS["max_workers"]),
}
KNOWN = (MODELS, *sorted(CONFIG_KEYS), *(f"model.{name}" for name in MODEL_KEYS))


def make_servers(
    names: Sequence[str],
    model: ModelUnderTest,
    cores: int,
    variants: Sequence[str] = (),
    batch_size: int = BATCH_SIZE,
) -> list[Adapter]:
    """Makes the named servers in order, then variants of servers.

    All have the same largest batch, except variants that set their own. Raises WrongOption for a
    name that is unknown or repeated.
    """
    check_names(names)
    made = [SERVERS[name](model, cores) for name in names]
    for server in made:
        server.batch_size = batch_size
    for text in variants:
        name, base, settings = parse_override(text)
        check_names([base])
        server = SERVERS[base](model, cores)
        server.batch_size = batch_size
        made.append(apply_override(server, name, settings))
    if len({server.name for server in made}) != len(made) or not made:
        given = ",".join(server.name for server in made)
        raise WrongOption(f"servers {given!r}: expected distinct names, at least one")
    return made


def check_names(names: Sequence[str]) -> None:
    for name in names:
        if name not in SERVERS:
            raise WrongOption(f"no server {name!r}: expected some of {', '.join(SERVERS)}")


def parse_override(text: str) -> tuple[str, str, dict[str, str]]:
    """Reads NAME=SERVER:KEY=VALUE;...: the variant's name, its server, and values as typed.

    Raises WrongOption for any other form or an unknown key; our handler checks its own settings.
    """
    name, _, rest = text.partition("=")
    server, _, listed = rest.partition(":")
    name, server = name.strip(), server.strip()
    pairs = [pair.partition("=") for pair in listed.split(";") if pair.strip()]
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    if not (name and server and pairs) or "/" in name or name.startswith("."):
        raise WrongOption(f"variant {text!r}: expected {VARIANT_FORM}, and no slash in the name")
    for key, sign, _ in pairs:
        if key.strip() not in KNOWN and not re.fullmatch(r"(handler|env)\.\w+", key.strip()):
            raise WrongOption(
                f"variant {name!r}: no setting {key.strip()!r}; expected handler.SETTING, env.NAME"
                f" or one of {', '.join(KNOWN)}"
            )
        if not sign:
            raise WrongOption(f"variant {name!r}: {key.strip()!r} has no value")
    if len(settings) < len(pairs):
        raise WrongOption(f"variant {name!r}: a key is there twice in {listed!r}")
    return name, server, settings


def apply_override(server: Adapter, name: str, settings: Mapping[str, str]) -> TorchServeAdapter:
    """Returns the server with the variant's name and settings.

    Raises:
        WrongOption: the server is no TorchServe, has no such setting, or a value is refused.
    """
    if not isinstance(server, TorchServeAdapter):
        raise WrongOption(
            f"variant {name!r}: {server.name!r} is no TorchServe, so its settings cannot be changed"
        )
    # Kind of setting -> its settings, without the kind's prefix.
    of: dict[str, dict[str, str]] = {"env": {}, "model": {}, "handler": {}, "config": {}}
    for key, value in settings.items():
        kind, _, rest = key.rpartition(".")
        of[kind or "config"][rest] = value
    asked = server.archive_settings
    if of["model"] and not asked:
        raise WrongOption(
            f"variant {name!r}: {server.name!r} runs on TorchServe's defaults: its archive has no"
            " settings"
        )
    if of["handler"] and "handler" not in asked:
        raise WrongOption(f"variant {name!r}: {server.name!r} does not have our handler")
    archive = change_archive(asked, of["model"], of["handler"])
    models = of["config"].pop(MODELS, "1")
    if models not in map(str, range(1, MAX_MODELS + 1)):
        raise WrongOption(f"variant {name!r}: models is {models!r}, expected 1 to {MAX_MODELS}")
    return replace(
        server,
        name=name,
        models=int(models),
        archive_settings=archive,
        batch_size=(
            archive[KEYS["batch_size"]] if "batch_size" in of["model"] else server.batch_size
        ),
        overrides={**server.overrides, **change_config(server, of["config"])},
        env={**server.env, **of["env"]},
    )


def change_config(server: TorchServeAdapter, config: dict[str, str]) -> dict[str, str]:
    more = config.pop(MORE_VMARGS, None)
    if more is not None:
        shipped = {} if server.stock else read_properties(find_config())
        options = {**shipped, **server.overrides, **config}.get(VMARGS, "")
        # Where two options contradict, Java takes the last.
        config[VMARGS] = f"{options} {more}".strip()
    return config


def change_archive(
    asked: Mapping[str, Any], model: Mapping[str, str], handler: Mapping[str, str]
) -> Mapping[str, Any]:
    """Returns the archive's model-config.yaml, checked as `offpath archive` does."""
    if not (model or handler):
        return asked
    changes = {key: read_value(value) for name, value in model.items() for key in MODEL_KEYS[name]}
    settings = {key: read_value(value) for key, value in handler.items()}
    changed = make_model_config(asked, changes, settings).settings
    # make_model_config adds an empty `handler:` where there was none.
    return {key: value for key, value in changed.items() if key in asked}


def read_value(text: str) -> Any:
    """Reads a value as in model-config.yaml; invalid YAML stays a text, which is refused later."""
    try:
        return load_yaml(text, "the value")
    except WrongOption:
        return text
