"""Starts, verifies and stops TorchServe; fork server, front door, log tools and client."""
