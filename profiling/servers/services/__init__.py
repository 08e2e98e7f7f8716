"""Programs that run inside the servers' own environments, written as those projects' examples.

Each is started by the adapter of its name. What happens between the bytes and the answer is the
same for all and lives in `profiling.servers.models`.
"""
