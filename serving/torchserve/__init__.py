"""Starts, verifies, watches and stops TorchServe."""
