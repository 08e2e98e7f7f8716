"""TorchServe written, started, verified, stopped; the fork server; the log's tools; the client."""
