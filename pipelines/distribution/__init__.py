"""What several processes need: strategies, workers and their agreement, signals, launchers."""
