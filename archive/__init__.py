"""Builds the .mar: model + handler + model-config.yaml, through torch-model-archiver."""
