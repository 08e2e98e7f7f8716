"""Reads what a client sent."""
