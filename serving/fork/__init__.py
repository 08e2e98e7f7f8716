"""The fork server: TorchServe's workers are forked from one process that has imported torch."""
