"""The paper's tables and figures as experiments: what is run, and what is read from the results."""
