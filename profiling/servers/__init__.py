"""Servers under test, one small adapter each."""
