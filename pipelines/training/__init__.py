"""The training loop, one step of it, optimizers, schedules, and what becomes of a failing step."""
