"""The report of `doctor` about this installation."""
