"""The paper's benchmarks, and its numbers beside a result."""
