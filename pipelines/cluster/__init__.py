"""Many machines: plans what a run takes of them."""
