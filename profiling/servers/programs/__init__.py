"""Programs of servers from PyPI: each runs in its server's environment and imports no adapter."""
