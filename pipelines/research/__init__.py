"""Programs that run many trainings or evaluations: sweeps, the paper, plans, the demo."""
