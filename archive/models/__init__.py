"""Model definitions that travel in an archive; one file per model, one class per file."""
