"""A torch.profiler trace of a few batches, with a range per stage; Perfetto shows it."""

from __future__ import annotations

from pathlib import Path

from offpath.profiling.profilers.drive import Driver
from offpath.profiling.profilers.stages import StageRecorder

TRACED_BATCHES = 3


def save_trace(driver: Driver, recorder: StageRecorder, path: Path) -> None:
    """Handles some batches under torch.profiler, which slows them down, and saves the trace."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as trace, recorder.marked_by(record_function):
        for _ in driver.run(TRACED_BATCHES, recorder):
            pass
    path.parent.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(path))
