"""Paths and URLs, atomic writes, JSON objects: what every reader and writer of files needs."""
