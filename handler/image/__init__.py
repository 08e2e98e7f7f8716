"""Turns image bytes into pixels of the model's input size."""

# Ends of the names of images in the formats of formats.py, in lower case, for commands that
# search a folder: those that Pillow knows. Here, because that module imports Pillow.
SUFFIXES = frozenset(".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .gif .bmp .tif .tiff".split())
