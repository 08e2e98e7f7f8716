"""TorchServe's default metrics, for handlers that are loaded without its worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ts


def make_default_metrics() -> Any:
    """Returns TorchServe's metrics cache with the metrics that it declares by default."""
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

    metrics = MetricsCacheYamlImpl(str(Path(ts.__file__).parent / "configs" / "metrics.yaml"))
    metrics.initialize_cache()
    return metrics
