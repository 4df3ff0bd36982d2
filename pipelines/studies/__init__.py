"""What runs several trainings or evaluations."""
