"""Makes a Ray Serve application from a .mar."""
