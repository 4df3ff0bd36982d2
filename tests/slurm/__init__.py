"""Tests on a SLURM cluster of this machine."""
