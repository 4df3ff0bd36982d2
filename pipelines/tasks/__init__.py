"""What is learned: tasks with their targets, losses and metrics."""
