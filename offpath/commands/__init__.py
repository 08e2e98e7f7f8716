"""One module a subcommand, each with its click command under the name `command`."""
