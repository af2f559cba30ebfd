"""Options that are not on a command line: from files and the environment."""
