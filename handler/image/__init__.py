"""Turns image bytes into pixels of the model's input size."""
