"""An implementation that is timed."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One implementation: `call` starts the work, inside of `context()`; `results` are its own."""

    call: Callable[[], Any]
    results: Callable[[], list[torch.Tensor]]
    context: Callable[[], Any] = contextlib.nullcontext

    def run(self, repeats):
        with self.context():
            for _ in range(repeats):
                self.call()

    def captured(self, repeats):
        """A CUDA graph of `repeats` calls."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            self.run(repeats)
        return graph
