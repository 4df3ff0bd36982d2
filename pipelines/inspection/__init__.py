"""Looks inside a model: numbers, pictures and a page about its weights and about images."""
