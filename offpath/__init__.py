"""The `offpath` command, and starting and checking TorchServe."""
