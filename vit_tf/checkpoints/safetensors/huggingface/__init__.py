"""Vision Transformers in the layout of Hugging Face `transformers`; it has no BiT ResNets.

Checked against transformers 5.24.0 (`models/vit`): `ViTForImageClassification`, whose head reads
the class token, and `ViTModel`, whose pooler is the tanh layer of the ImageNet-21k models. Both
are saved with the names in `vit.py`. Version 5 has other names in memory, which can be read too.
`dinov2.py`, `dinov2_with_registers.py`, `dinov3.py` and `siglip.py` have the layouts of image
encoders.
"""
