"""Handlers to compare with."""
