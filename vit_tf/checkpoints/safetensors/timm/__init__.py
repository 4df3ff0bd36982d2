"""Models in the layout of PyTorch Image Models (timm): Vision Transformers, hybrids, BiT ResNets.

Checked against timm 1.0.31 (`vision_transformer.py`, `vision_transformer_hybrid.py`,
`resnetv2.py`, `layers/`). Its `config.json` names an architecture and the arguments that deviate
from it; activation, epsilons and paddings are not in the file and follow from the architecture:

- Vision Transformers: erf GELU (some SigLIP: tanh), LayerNorm epsilon 1e-6.
- Hybrids: SAME padding, GroupNorm epsilon 1e-5, kernels standardized with 1e-8 in the variance.
- BiT: the same epsilons, explicit zeros around the images and the first max pooling.

`timm.create_model("local-dir:<folder>", pretrained=True)` loads the written files, except for stems
and ResNets without an architecture in timm; load those into a model that you construct yourself.
"""
