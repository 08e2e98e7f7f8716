"""The parts of an HTTP server in Python around an archive, for Granian's worker and Ray's export.

Exports get copies of these modules in one flat folder, so none imports another or offpath.
"""
