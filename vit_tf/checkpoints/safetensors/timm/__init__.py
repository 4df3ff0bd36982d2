"""Models as PyTorch Image Models (timm) keeps them: Vision Transformers, hybrids and BiT ResNets.

Checked against timm 1.0.31 (`vision_transformer.py`, `vision_transformer_hybrid.py`,
`resnetv2.py`, `layers/`). Its `config.json` names an architecture and the arguments that deviate
from it; activation, epsilons and paddings are not in the file and follow from the architecture:

- Vision Transformers: erf GELU (some SigLIP: tanh), LayerNorm epsilon 1e-6.
- Hybrids: SAME padding, GroupNorm epsilon 1e-5, kernels standardised with 1e-8 in the variance.
- BiT: the same epsilons, explicit zeros around the images and the first max pooling.

`timm.create_model("local-dir:<folder>", pretrained=True)` loads what is written, except stems and
ResNets of which timm has no architecture; those load into a model that is put together by hand.
"""
