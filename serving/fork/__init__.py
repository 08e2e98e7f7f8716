"""The fork server: workers forked from one process that has imported torch."""
