"""Paths and URLs, atomic writes, JSON objects: functions for every reader and writer of files."""
