"""Load generators: Locust, which is always there, and wrk, which needs less CPU."""
