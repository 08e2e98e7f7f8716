"""Profiles of any handler, without a server."""
