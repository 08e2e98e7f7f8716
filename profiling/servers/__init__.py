"""Servers under test, one module each."""
