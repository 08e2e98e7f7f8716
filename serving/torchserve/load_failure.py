"""Finds in TorchServe's log why a model or a worker did not load."""

from __future__ import annotations

import re

from offpath.serving.server.server_log import MAX_LINES, LogLine, has_exception

# ts/model_service_worker.py, WorkerThread.java. The last message follows any death of a worker.
WORKER_FAILURE = re.compile(
    r"Failed to load model|Load model \S+ (cpu|cuda) OOM|Backend worker process died"
    r"|Backend worker did not receive connection|Retry worker: "
)
# ModelServer.java refused the archive itself.
MODEL_REFUSED = re.compile(r"Failed to load model: ")
# The first line that a worker writes: the lines after it belong to the next attempt.
WORKER_START = "s_name_part0="


def find_load_failure(lines: list[LogLine]) -> tuple[str, list[str]] | None:
    """Finds why a model or a worker did not load: the first failure with an exception, or any.

    Returns:
        NAME_VERSION of the model, or its archive's file if TorchServe itself refused that, and the
        lines that tell why; None if none failed.
    """
    first: tuple[str, list[str]] | None = None
    for index, line in enumerate(lines):
        if line.worker is not None and WORKER_FAILURE.search(line.message):
            found = line.model, _worker_story(lines, index, line.worker)
        elif line.worker is None and MODEL_REFUSED.search(line.message):
            who = MODEL_REFUSED.sub("", line.message)
            story = [entry.message for entry in lines[index : index + MAX_LINES]]
            found = who, story
        else:
            continue
        if has_exception(found[1]):
            return found
        first = first or found
    return first


def _worker_story(lines: list[LogLine], failure: int, worker: str) -> list[str]:
    """Returns a worker's output around its failure, up to the end of the traceback."""
    of_worker = [
        (index, line.message)
        for index, line in enumerate(lines)
        if line.worker == worker and line.logger.endswith("MODEL_LOG")
    ]
    before = [message for index, message in of_worker if index < failure]
    after: list[str] = []
    for index, message in of_worker:
        if index < failure:
            continue
        if message.startswith(WORKER_START):
            break
        after.append(message)
    return (after or before or [lines[failure].message])[-MAX_LINES:]
