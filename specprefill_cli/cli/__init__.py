"""The command line: one file a command. No module imports torch before a command needs it."""
