"""What a run leaves on disk and tells on the way, and where models come from."""
