"""Counts the failures of a worker's model, and ends a worker whose model cannot recover.

A broken worker answers fastest, so most requests would go to it. On a sticky CUDA error every later
call of the process fails, and only a new process helps. Out of memory often passes, so it takes
more batches in a row.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import traceback
from collections.abc import Callable

import torch

from offpath.handler.errors import ItemError, ModelFailed, ModelOutOfMemory
from offpath.handler.model.device_errors import is_out_of_memory, is_sticky, name_error

# Batches in a row that fail in the model, on any device and with any error, before a worker ends.
MAX_FAILURES_IN_A_ROW = 5
# The same for batches that run out of memory, which often passes by itself.
MAX_OUT_OF_MEMORY_IN_A_ROW = 10
# A sick worker that gets no further batch ends after this time.
IDLE_S = 1.0
EXIT_STATUS = 1


class ModelHealth:
    """The failures of a worker's model, batch by batch.

    Attributes:
        failures: batches in a row that failed with another error than out of memory.
        out_of_memory: batches that ran out of memory since the last one that succeeded.
        diagnosis: the reason to end this process, in one line; None while the model may recover.
    """

    def __init__(self) -> None:
        self.failures = self.out_of_memory = 0
        self.diagnosis: str | None = None

    def note_success(self) -> None:
        """Notes that the model answered an image, which interrupts failures in a row."""
        self.failures = self.out_of_memory = 0

    def fail_batch(self, error: Exception, is_model: bool = True) -> ItemError:
        """Notes that a batch failed, and frees the memory that it held.

        Args:
            error: the batch's exception.
            is_model: False if the batch failed before the model ran. Then only a sticky error
                counts, so that nobody can end workers with images.

        Returns:
            the error for each item of the batch.
        """
        # The frames hold the batch's tensors.
        traceback.clear_frames(error.__traceback__)
        last = name_error(error)
        if is_out_of_memory(error):
            torch.cuda.empty_cache()  # does nothing on a CPU
            self.out_of_memory += is_model
            if self.out_of_memory >= MAX_OUT_OF_MEMORY_IN_A_ROW:
                self.diagnosis = (
                    f"{self.out_of_memory} batches in a row ran out of memory, the last"
                    f" with {last}"
                )
            return ModelOutOfMemory(
                "the model ran out of memory on this batch; send the request again"
            )
        self.failures += is_model
        if is_sticky(error):
            self.diagnosis = last
        elif self.failures >= MAX_FAILURES_IN_A_ROW:
            self.diagnosis = f"{self.failures} batches in a row failed, the last with {last}"
        return ModelFailed("the model failed on this batch; send the request again")


def end_after_reply(connection: socket.socket, end: Callable[[int], None] = os._exit) -> None:
    """Ends this TorchServe worker once its reply has arrived.

    TorchServe sends nothing until it has read the reply. So the next byte proves that the reply
    arrived. It is the start of the next batch, which TorchServe answers with 500 ("Worker died.").
    Ending between two batches would be worse: TorchServe (WorkerThread.java) forgets requests that
    it is collecting when the connection closes, and they never get an answer. For the same reason
    an idle worker waits `IDLE_S` before it ends.

    Args:
        connection: TorchServe's connection to this worker.
        end: ends the process without Python's clean-up, which could hang on a broken device.
    """

    def run() -> None:
        poller = select.poll()  # select.select takes no descriptor over 1023
        poller.register(connection, select.POLLIN)
        poller.poll(IDLE_S * 1000)
        end(EXIT_STATUS)

    threading.Thread(target=run, name="end", daemon=True).start()
