"""Processes, signals and ports."""
