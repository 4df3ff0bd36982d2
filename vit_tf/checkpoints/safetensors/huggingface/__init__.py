"""Vision Transformers as Hugging Face `transformers` keeps them; it has no other family of ours.

Checked against transformers 5.23.0 (`models/vit`): `ViTForImageClassification`, whose head reads
the class token, and `ViTModel`, whose pooler is the tanh layer of the ImageNet-21k models. Both
are saved with the names of `vit.py`; version 5 calls the layers otherwise in memory, and such names
are read as well.
"""
