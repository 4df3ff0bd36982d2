"""Models of Hugging Face transformers and of timm, both ways."""
