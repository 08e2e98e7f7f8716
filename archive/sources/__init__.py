"""Reads models, weights and existing archives."""
