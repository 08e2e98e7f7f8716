"""Turns image bytes into pixels of the model's input size."""

# Ends of the names of images in the formats of formats.py, in lower case, for commands that
# search a folder. Here, because that module imports Pillow.
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
