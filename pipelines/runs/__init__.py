"""Files and log lines of a run, devices, and the sources of models."""
