"""Searches batch size, delay, workers and threads for the highest throughput within a latency."""
