"""Shared fixtures: photographs that ship in PyPI packages."""
