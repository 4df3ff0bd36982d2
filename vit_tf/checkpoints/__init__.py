"""File formats of weights: the published npz layout, Hugging Face, timm."""
