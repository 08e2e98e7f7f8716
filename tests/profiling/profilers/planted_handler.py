"""A user's handler with two planted mistakes: it opens a file for each request, and sleeps."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor


class Planted:
    """A handler that answers with the length of each body."""

    def initialize(self, context):
        self.path = os.path.join(context.system_properties["model_dir"], "audit.txt")
        self.pool = ThreadPoolExecutor(2)

    def handle(self, data, context):
        return self.postprocess(self.inference(self.preprocess(data)))

    def preprocess(self, data):
        return [row["body"] for row in data]

    def inference(self, bodies):
        return list(self.pool.map(self.measure, bodies))

    def measure(self, body):
        # Long enough for a row of its own.
        return len(body) + 0 * len(sorted(body[:5000]))

    def postprocess(self, sizes):
        for size in sizes:
            self.write_audit(size)
        time.sleep(0.005)
        return [str(size) for size in sizes]

    def write_audit(self, size):
        with open(self.path, "a") as file:
            file.write(f"{size}\n")
        time.sleep(0.002)


class Raising(Planted):
    """A handler that fails in `handle`."""

    def inference(self, bodies):
        raise ValueError("planted")


class Dying(Planted):
    """A handler whose process is killed."""

    def inference(self, bodies):
        print("farewell", flush=True)
        os.kill(os.getpid(), 9)
