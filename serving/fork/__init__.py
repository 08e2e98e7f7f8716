"""Forks from one process that has imported torch, and TorchServe's fork server on top of it."""
