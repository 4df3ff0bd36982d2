"""Studies that run several trainings or evaluations."""
