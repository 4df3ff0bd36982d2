"""The workers of a run on several machines: who they are, how they meet, and how they agree."""
