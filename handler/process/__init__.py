"""The worker process: start-up, memory, cores, and the server it runs in."""
