"""The demo: its stages, its checks and its page."""
