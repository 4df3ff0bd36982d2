"""The engine that runs many trainings and measurements; sweeps and the paper's studies use it."""
