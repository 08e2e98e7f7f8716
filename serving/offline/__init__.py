"""Classifies all images of a folder, a list or a bucket without a server: `offpath batch`."""
