"""The training loop, one step of it, and the optimizers."""
