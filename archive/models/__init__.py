"""Model definitions that travel in an archive: one file a model, exactly one class in each."""
