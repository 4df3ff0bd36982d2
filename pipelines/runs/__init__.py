"""Files and log lines of a run, devices, signals."""
