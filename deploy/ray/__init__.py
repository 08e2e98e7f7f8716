"""A Ray Serve application from a .mar."""
