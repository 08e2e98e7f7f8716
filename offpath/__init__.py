"""An image classifier for TorchServe that keeps everything but inference off the request's path."""
