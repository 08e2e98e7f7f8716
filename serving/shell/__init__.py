"""What an HTTP server in Python needs to serve an archive: Granian's worker and Ray's export use it.

Exports get copies of these modules in one flat folder, so none imports another or offpath.
"""
