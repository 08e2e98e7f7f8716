"""Turns pixels into scores."""
