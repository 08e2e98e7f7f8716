"""`offpath check`: what a host, a configuration, an archive and a running server really have."""
