"""Load generators: Locust (always there), wrk (lighter, where it is installed)."""
