"""What makes training through low-rank adapters (LoRA) cheap: dense layers and activations."""
