"""What any server is: settings, start and end, log, and what it says about its models."""
