"""Serves archives with Granian, an HTTP server in Rust for Python applications; Java is not needed.

`offpath serve` (server.py) starts a supervisor (supervisor.py), which forks one worker (worker.py)
per model and slot. Workers of one port share its kept connections evenly (balance.py). Workers
report to `offpath serve`, which answers for all of them (reports.py).
"""
