"""The lab's commands: one file a command."""
