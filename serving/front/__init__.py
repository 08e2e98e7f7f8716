"""The front door: a web server before TorchServe that keeps large bodies out of Java."""
