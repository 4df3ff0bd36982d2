"""Choices that flags or several modules name. Those of one field are its own `Literal` type."""

from typing import Literal, get_args

# The suites of fine-tuning; `data/protocols/suites.py` has what they are.
SuiteName = Literal["vtab", "cifar10", "cifar100", "pets", "flowers"]
Strategy = Literal["auto", "one_device", "mirrored", "multi_worker", "tpu"]
# Weights of a run: the newest, their moving average, or the weights with the best evaluation.
Weights = Literal["final", "ema", "best"]
# Evaluations of the paper that train nothing.
Benchmark = Literal["imagenet", "real", "objectnet"]
# Keras dtype policies.
Dtype = Literal["float32", "mixed_bfloat16", "mixed_float16"]
# dtype of the images in batches.
ImageDtype = Literal["float32", "uint8"]
# Values of --precision -> policy.
PRECISIONS = {name: name for name in get_args(Dtype)} | {"bfloat16": "mixed_bfloat16"}
# Those that `vit_tf.pack_model` covers.
PACKED_PRECISIONS = ("float32", "mixed_bfloat16", "bfloat16")
# The data sets that modules of these names in `data/builtin` make.
BUILTIN = ("digits", "shapes")
# Instead of the name of a split: `data.sources.open` chooses a split of the data set.
AUTO_SPLIT = "auto"
# Ranges of folders and lists, such as train[:90%]: of each class, or of all files.
SplitBy = Literal["class", "file"]
# How the classes of folders and lists are numbered: `data/labels/class_order.py`.
ClassOrder = Literal["auto", "text", "natural"]
# Ops in a SavedModel: TensorFlow's own, or the compiled ops of this project.
ExportForm = Literal["portable", "fused"]
# Exports as one file, and the weights and activations of one for LiteRT.
FileForm = Literal["litert", "onnx"]
Quantization = Literal["none", "float16", "dynamic_int8", "int8"]
# What `plan --measure` measures.
Passes = Literal["inference", "training"]
# Forms of folders with `model.safetensors`; vit_tf.families lists the forms of each family.
Layout = Literal[
    "huggingface",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "dinov3",
    "siglip",
    "timm",
    "axial_deeplab",
]
