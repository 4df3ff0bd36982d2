"""The training loop, the training step, optimizers, schedules, and steps that are not finite."""
