"""Classifies a folder of photographs with `offpath batch` and with Ray Data, in turns.

    python scripts/batch_beside_ray.py RESULT.txt

Each has a process per core, batches of 8, and offpath's own pipeline inside. The rate is that of
the whole command, with its start. The same cores decode alone first, and run the model alone, which
is the limit. Ray Data is installed into an environment of its own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

BATCH, ROUNDS, SECONDS = 8, 3, 20


def run_ray(folder: str, output: str, cores: str) -> None:
    """Classifies a folder in Ray's environment."""
    import ray

    from offpath.profiling.servers.classifiers import load_classifier

    class Classify:
        def __init__(self) -> None:
            self.classify = load_classifier("offpath-decode", "near-free", 1, BATCH)

        def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
            answers = self.classify(list(rows["bytes"]))
            return {"input": rows["path"], "answer": [json.dumps(one) for one in answers]}

    # One more, because the tasks that read files need a core by Ray's count.
    ray.init(include_dashboard=False, num_cpus=int(cores) + 1, log_to_driver=False)
    photographs = ray.data.read_binary_files(folder, include_paths=True)
    pool = ray.data.ActorPoolStrategy(size=int(cores))
    answers = photographs.map_batches(Classify, batch_size=BATCH, compute=pool, num_cpus=1)
    answers.write_json(output)


def measure(result: Path) -> None:
    from offpath.handler.process.host_limits import count_cores
    from offpath.profiling.load.core_limits import LimitMeter
    from offpath.profiling.load.model_under_test import load_model
    from offpath.profiling.load.workload import load_workload
    from offpath.profiling.servers import archives
    from offpath.profiling.servers.environments import Environment

    ray = Environment("ray-data", ("ray[data]==2.60.0",), 450).ensure()
    model, cores, found = load_model("near-free"), count_cores(), {}
    with TemporaryDirectory() as name:
        mar = archives.build_offpath(model, archives.offpath_config(model, cores), Path(name))
        commands = {
            "offpath batch": [sys.executable, "-m", "offpath", "batch", str(mar)],
            "Ray Data": [str(ray), __file__, "--ray"],
        }
        for workload in ("photos-1200k", "photos-55k"):
            rates: dict[str, list[float]] = {
                one: [] for one in ("decode", "decode and model", *commands)
            }
            for turn in range(ROUNDS):
                paths = load_workload(workload).paths
                with LimitMeter("near-free", cores, BATCH, 5.0) as meter:
                    limits = meter.measure_decode(paths), meter.measure_forward()
                decode, forward = (one["images"] / one["elapsed_s"] for one in limits)
                rates["decode"].append(decode)
                rates["decode and model"].append(1 / (1 / decode + 1 / forward))
                folder = Path(name) / f"{workload}-{turn}"
                folder.mkdir()
                count = int(rates["decode"][0] * SECONDS)
                for idx in range(count):
                    (folder / f"{idx}.jpg").symlink_to(paths[idx % len(paths)])
                for tool, command in commands.items():
                    output, began_s = str(folder) + tool.replace(" ", "-"), time.monotonic()
                    own = [] if tool == "offpath batch" else [str(cores)]
                    subprocess.run([*command, str(folder), output, *own], check=True, stdout=2)
                    rates[tool].append(count / (time.monotonic() - began_s))
            found[workload] = rates
    result.write_text(make_table(found))


def make_table(found: dict[str, dict[str, list[float]]]) -> str:
    """Makes a table of medians and ranges, in images per second."""
    lines = [f"| | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    for tool in next(iter(found.values())):
        rounds = [workload[tool] for workload in found.values()]
        cells = (f"{statistics.median(r):.1f} ({min(r):.1f}-{max(r):.1f})" for r in rounds)
        lines.append(f"| {tool} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1] == "--ray":
        run_ray(*sys.argv[2:])
    else:
        measure(Path(sys.argv[1]))
