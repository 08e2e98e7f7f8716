"""The front door: nginx in front of TorchServe, which keeps large bodies out of Java."""
