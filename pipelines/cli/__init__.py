"""The frame of every command: exit codes, shared flags, the request of the user, help."""
