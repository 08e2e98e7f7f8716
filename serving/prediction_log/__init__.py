"""Reads, ships and inspects the prediction log from outside the workers."""
