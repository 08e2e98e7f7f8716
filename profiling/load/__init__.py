"""Load on a server: photographs, generators, windows."""
