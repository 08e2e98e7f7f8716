"""Finds settings that nothing reads, because they are misspelt or stand in the wrong place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from offpath.archive.mar_file import MarFile
from offpath.handler.config_section import MUCH_LIKE, suggest
from offpath.handler.serving_settings import KEYS, RANGES, name_keys
from offpath.serving.finding import Finding, wrong
from offpath.serving.server.properties import Properties

# Nothing reads these keys, but KServe's own examples have them.
OF_KSERVE = {"NUM_WORKERS", "metrics_format"}
# Keys that TorchServe reads of config.properties (ConfigManager.java, ts/model_server.py).
PROPERTIES = frozenset("""
    allowed_urls async_logging blacklist_env_vars certificate_file cors_allowed_headers
    cors_allowed_methods cors_allowed_origin cpp_log_config cpu_launcher_args cpu_launcher_enable
    debug decode_input_request default_response_timeout default_service_handler
    default_startup_timeout default_workers_per_model disable_system_metrics
    disable_token_authorization enable_envvars_config enable_grpc_ssl enable_metrics_api
    enable_model_api grpc_inference_address grpc_inference_max_connection_age_grace_ms
    grpc_inference_max_connection_age_ms grpc_inference_port grpc_management_address
    grpc_management_max_connection_age_grace_ms grpc_management_max_connection_age_ms
    grpc_management_port inference_address initial_distribution_port initial_worker_port
    install_py_dep_per_model io_ratio ipex_enable ipex_gpu_enable job_queue_size keystore
    keystore_pass keystore_type limit_max_image_pixels load_models management_address
    max_request_size max_response_size metric_time_interval metrics_address metrics_config
    metrics_mode model_metrics_auto_detect model_server_home model_snapshot model_store models
    netty_client_threads number_of_gpu number_of_netty_threads plugins_path prefer_direct_buffer
    private_key_file python service_envelope system_metrics_cmd token_expiration_min tsConfigFile
    ts_header_key_sequence_end ts_header_key_sequence_id ts_header_key_sequence_start
    ts_open_inference_protocol ts_request_sequence_end ts_request_sequence_id
    ts_request_sequence_start unregister_model_timeout use_env_allowed_urls use_native_io version
    vmargs workflow_store""".split())
# Keys of model-config.yaml (ModelConfig.java), and of an entry of models={...} (Model.java).
SETTINGS = (
    *(*KEYS.values(), "handler", "torchrun", "parallelLevel", "parallelType", "jobQueueSize"),
    *("maxRetryTimeoutInSec", "clientTimeoutInMills", "useJobTicket", "continuousBatching"),
    *("sequenceBatching", "maxSequenceJobQueueSize", "maxNumSequence", "sequenceMaxIdleMSec"),
    *("sequenceTimeoutMSec", "useVenv", "asyncCommunication"),
)
MODEL_SETTINGS = (
    *(KEYS[name] for name in RANGES),
    *("defaultVersion", "marName", "parallelLevel", "runtimeType"),
)
# TorchServe ignores these keys in config.properties; a model's settings are in its archive.
ARCHIVE_OPTIONS = {
    "batch_size": "--batch-size",
    "max_batch_delay": "--max-batch-delay-ms",
    **name_keys(
        batch_size="--batch-size",
        max_batch_delay_ms="--max-batch-delay-ms",
        min_workers="--workers",
        max_workers="--workers",
    ),
}
CORRECT = "correct it, or remove it"


def find_unread_properties(area: str, properties: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the keys of a config.properties that no server reads."""
    for key, value in properties.items():
        if key in ARCHIVE_OPTIONS:
            found = f"TorchServe ignores {key} there; it belongs into models={{...}} or the archive"
            yield wrong(area, key, found, f"offpath archive {ARCHIVE_OPTIONS[key]} {value} ...")
    yield from _find_unknown(area, properties, PROPERTIES | OF_KSERVE | ARCHIVE_OPTIONS.keys())


def find_unread_models(area: str, properties: Properties) -> Iterator[Finding]:
    """Yields the keys in `models={...}` that TorchServe does not read."""
    for versions in properties.models.values():
        for settings in versions.values():
            yield from _find_unknown(area, settings, MODEL_SETTINGS)


def find_unread_settings(area: str, archive: MarFile) -> Iterator[Finding]:
    """Yields the keys of a model-config.yaml that nothing reads.

    Another handler than offpath's may read keys of its own, unless they look misspelt.
    """
    for one in _find_unknown(area, archive.model_config or {}, SETTINGS):
        if archive.has_our_handler or "did you mean" in one.found:
            yield one


def _find_unknown(area: str, given: Iterable[object], known: Collection[str]) -> Iterator[Finding]:
    for key in map(str, given):
        if key not in known:
            yield wrong(
                area, key, f"unknown key {key!r:.80}{suggest(key, known, MUCH_LIKE)}", CORRECT
            )
