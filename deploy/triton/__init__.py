"""Makes a model repository for Triton Inference Server from a .mar."""
