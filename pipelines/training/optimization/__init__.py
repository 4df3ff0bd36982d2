"""Optimizers, schedules, frozen variables, rates by layer, averages of weights, loss scales."""
