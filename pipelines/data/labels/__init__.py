"""Labels: how sources store them, rules that compute them, and files that name classes."""
