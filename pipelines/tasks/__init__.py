"""What is learned: losses and metrics."""
