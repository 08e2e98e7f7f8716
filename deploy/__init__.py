"""Runs the same archive elsewhere: exports to other servers, files for containers and hosts."""
