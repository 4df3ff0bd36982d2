"""Tasks with their targets, losses and metrics."""
