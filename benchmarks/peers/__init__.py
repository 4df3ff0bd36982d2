"""CPU inference of ViTs beside other systems: `python -m benchmarks.peers`, `....load`.

The driver and this project's exports run in `.venv`, the other systems in `.venv-peers`. `worker`
runs in both, so it imports no package of this project.
"""
