"""A TorchServe under test with other settings: NAME=SERVER:KEY=VALUE;KEY=VALUE

    offpath bench compare --servers offpath --baseline offpath \\
        --variant "heap buffers=offpath:prefer_direct_buffer=false" \\
        --variant "parallel=offpath:vmargs=-Xms2g -Xmx2g -XX:+UseParallelGC" \\
        --variant "alone=offpath:model.batch_size=1;handler.engine=eager"

SERVER is a TorchServe of the registry. Each KEY changes one thing; everything else stays as in
SERVER:

- a key of config.properties; `vmargs` replaces all of Java's options, `vmargs+` adds options;
- model.batch_size, model.max_batch_delay_ms, model.workers: settings of the archive;
- handler.SETTING: a setting of our handler, with a value as in YAML;
- env.NAME: a variable of the server and its workers;
- front.SETTING: a setting of the front door, see FRONT_KEYS.

A value ends at the next `;`. Spaces around names and values do not count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from offpath.archive.bounded_yaml import load_yaml
from offpath.archive.model_config import make_model_config
from offpath.handler.errors import WrongOption
from offpath.profiling.servers.torchserve import FRONT_KEYS, FrontDoorAdapter, TorchServeAdapter
from offpath.serving.torchserve.server_settings import find_config, read_properties

FORM = "NAME=SERVER:KEY=VALUE;KEY=VALUE"
VMARGS, MORE_VMARGS = "vmargs", "vmargs+"
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
    "batch_size": ("batchSize",),
    "max_batch_delay_ms": ("maxBatchDelay",),
    "workers": ("minWorkers", "maxWorkers"),
}


@dataclass(frozen=True)
class Override:
    """A variant as it was asked for: its name, the server that it changes, values as typed."""

    name: str
    server: str
    settings: Mapping[str, str]

    def of_kind(self, kind: str) -> dict[str, str]:
        """Returns the settings whose key begins with `kind.`, without this prefix."""
        return {
            key.removeprefix(f"{kind}."): value
            for key, value in self.settings.items()
            if key.startswith(f"{kind}.")
        }


def parse_override(text: str) -> Override:
    """Reads NAME=SERVER:KEY=VALUE;...; raises WrongOption for any other form or unknown key."""
    name, _, rest = text.partition("=")
    server, _, listed = rest.partition(":")
    name, server = name.strip(), server.strip()
    pairs = [pair.partition("=") for pair in listed.split(";") if pair.strip()]
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    if not (name and server and pairs) or "/" in name or name.startswith("."):
        raise WrongOption(f"variant {text!r}: expected {FORM}, and no slash in the name")
    for key, sign, _ in pairs:
        check_key(name, key.strip())
        if not sign:
            raise WrongOption(f"variant {name!r}: {key.strip()!r} has no value")
    if len(settings) < len(pairs):
        raise WrongOption(f"variant {name!r}: a key is there twice in {listed!r}")
    return Override(name, server, settings)


def check_key(name: str, key: str) -> None:
    """Refuses an unknown key; our handler checks its own settings."""
    known = [*sorted(CONFIG_KEYS), *(f"model.{one}" for one in MODEL_KEYS)]
    known += [f"front.{one}" for one in FRONT_KEYS]
    if key not in known and not re.fullmatch(r"(handler|env)\.\w+", key):
        raise WrongOption(
            f"variant {name!r}: no setting {key!r}; expected handler.SETTING, env.NAME or one of"
            f" {', '.join(known)}"
        )


def apply_override(server: object, override: Override) -> TorchServeAdapter:
    """Returns the server with the variant's name and settings.

    Raises:
        WrongOption: the server is no TorchServe, has no such setting, or a value is refused.
    """
    if not isinstance(server, TorchServeAdapter):
        raise WrongOption(
            f"variant {override.name!r}: {override.server!r} is no TorchServe, so its"
            " settings cannot be changed"
        )
    archive = change_archive(server, override)
    is_own = "batch_size" in override.of_kind("model")
    changed = replace(
        server,
        name=override.name,
        archive_settings=archive,
        batch_size=archive["batchSize"] if is_own else server.batch_size,
        overrides={**server.overrides, **change_config(server, override)},
        env={**server.env, **override.of_kind("env")},
    )
    front = {k: read_value(v) for k, v in override.of_kind("front").items()}
    if not front:
        return changed
    if not isinstance(changed, FrontDoorAdapter):
        raise WrongOption(f"variant {override.name!r}: {override.server!r} has no front door")
    return replace(changed, front=front)


def change_config(server: TorchServeAdapter, override: Override) -> dict[str, str]:
    config = {k: v for k, v in override.settings.items() if k in CONFIG_KEYS}
    more = config.pop(MORE_VMARGS, None)
    if more is not None:
        shipped = {} if server.stock else read_properties(find_config())
        options = {**shipped, **server.overrides, **config}.get(VMARGS, "")
        # Where two options contradict, Java takes the last.
        config[VMARGS] = f"{options} {more}".strip()
    return config


def change_archive(server: TorchServeAdapter, override: Override) -> Mapping[str, Any]:
    """Returns the archive's model-config.yaml, checked as `offpath archive` does."""
    model, handler = override.of_kind("model"), override.of_kind("handler")
    asked = server.archive_settings
    if model and not asked:
        raise WrongOption(
            f"variant {override.name!r}: {override.server!r} runs on TorchServe's defaults:"
            " its archive has no settings"
        )
    if handler and "handler" not in asked:
        raise WrongOption(
            f"variant {override.name!r}: {override.server!r} does not have our handler"
        )
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
