"""TorchServe's default metrics, for handlers that are loaded without its worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ts


def find_default_metrics() -> Path:
    """Returns the path of TorchServe's own metrics.yaml."""
    return Path(ts.__file__).parent / "configs" / "metrics.yaml"


def make_default_metrics() -> Any:
    """Returns TorchServe's metrics cache with the metrics that it declares by default."""
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

    metrics = MetricsCacheYamlImpl(str(find_default_metrics()))
    metrics.initialize_cache()
    return metrics
