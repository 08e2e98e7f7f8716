"""The worker process: start-up, memory, cores, and the server that it runs in."""
