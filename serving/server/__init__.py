"""The base of every server: settings, start and end, log, and what it says about its models."""
