"""Processes, signals, ports and connections of a server."""
