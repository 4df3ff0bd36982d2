"""The paper's tables and figures at full scale: which commands, and which of their numbers."""
