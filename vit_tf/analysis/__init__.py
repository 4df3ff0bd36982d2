"""What a model costs and what it has learned, as pure functions."""
