"""TorchServe: Java's command line and properties, and why its workers do not load."""
