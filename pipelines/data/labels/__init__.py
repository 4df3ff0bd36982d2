"""Labels: how sources store them, and files that name classes."""
