"""Made-up runs with known figures."""

from __future__ import annotations

from typing import Any

from offpath.profiling.core.run import Cell, Figures, Run

PHOTOS = Cell("photos", 32)


def make_run(experiment: str = "compare", **changes: Any) -> Run:
    values: dict[str, Any] = {
        "experiment": experiment,
        "command": f"offpath bench {experiment}",
        "started_at": "2026-01-01T00:00:00+00:00",
        "host": {"cpu": "some", "cores": 2, "packages": {"torch": "2.14.1"}},
        "settings": {"clients": [32], "seconds": 10.0},
        "workloads": {"photos": {"identity": "ab", "mean_bytes": 1000, "count": 32}},
        "variants": {"torchserve-stock": {"stock": True}, "offpath": {"stock": False}},
    }
    return Run(**(values | changes))


def make_window(good: int, **changes: Any) -> Figures:
    """Ten seconds under load; `changes` may name further raw metrics, `__` stands for a dot."""
    figures: dict[str, Any] = {
        "elapsed_s": 10.0,
        "replies_200": good,
        "latency_ms": [float(ms) for ms in range(1, 101)],
        "cpu_s.frontend": 2.0,
        "cpu_s.workers": 10.0,
        "cpu_s.generator": 0.5,
        "cpu_s.other": 0.2,
        "other_cores": 0.02,
        "rss_bytes.frontend": 10e6,
        "rss_bytes.workers": 20e6,
    }
    return figures | {name.replace("__", "."): it for name, it in changes.items()}


def make_limit(images: int) -> Figures:
    """Returns the figures of images that all cores handled in ten seconds."""
    return {"images": images, "elapsed_s": 10.0, "cpu_s.limit": 20.0}


def make_compare(**changes: Any) -> Run:
    """Three rounds of two servers beside the limits: 200 and 600 images per second."""
    run = make_run(**changes)
    run.variants |= {"limit:decode": {}, "limit:forward": {}}
    run.add(0, "limit:decode", Cell("photos"), make_limit(2000))
    run.add(0, "limit:forward", Cell(), make_limit(6000))
    for round_, (stock, ours) in enumerate([(100, 1000), (120, 1500), (110, 1210)]):
        run.add(round_, "torchserve-stock", PHOTOS, make_window(stock))
        run.add(round_, "offpath", PHOTOS, make_window(ours))
        run.add(round_, "offpath", Cell(), {"ready_s": 5.0 + round_})
    return run
