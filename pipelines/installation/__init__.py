"""What `doctor` reports about this installation."""
