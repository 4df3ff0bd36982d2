#!/bin/sh
# Guess: Keras Hub builds a Vision Transformer of Hugging Face with the activation (hidden_act) and
# the LayerNorm epsilon (layer_norm_eps) of its config.json, or refuses values that it does not have.
#
# Seen with keras-hub 0.32.0, Keras 3.15.1 and TensorFlow 2.20.0 (x86-64, 2026-11-28): it reads
# neither, without a word. The folders below differ in one setting each. With the same weights all
# give the features of the first one, with the erf form of GELU and an epsilon of 1e-6. So models
# with tanh GELU, as in the paper, or with the 1e-12 of google/vit-* get other features than they
# were trained with.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  tensorflow==2.20.0 keras==3.15.1 keras-hub==0.32.0 safetensors==0.8.0 2> "$folder/errors" \
  || { cat "$folder/errors" >&2; exit 1; }
cat > "$folder/settings.py" <<'PYTHON'
import json
import pathlib
import sys

import keras
import keras_hub
import numpy as np
import tensorflow as tf

CONFIG = {
    "architectures": ["ViTModel"],
    "model_type": "vit",
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
}
CHANGES = [{}, {"hidden_act": "gelu_pytorch_tanh"}, {"hidden_act": "relu"}, {"layer_norm_eps": 1.0}]
images = np.random.default_rng(0).uniform(-1, 1, [2, 32, 32, 3]).astype("float32")
print(f"keras-hub {keras_hub.__version__}, Keras {keras.__version__}, TensorFlow {tf.__version__}")
weights, features, same = None, [], []
for index, change in enumerate(CHANGES):
    folder = pathlib.Path(sys.argv[1], str(index))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | change))
    model = keras_hub.models.Backbone.from_preset(str(folder), load_weights=False)
    if weights is None:
        generator = np.random.default_rng(1)
        weights = [generator.normal(0, 0.5, value.shape) for value in model.get_weights()]
    model.set_weights(weights)
    features.append(np.array(model(images, training=False)))
    same.append(bool((features[0] == features[-1]).all()))
    print(change, type(model).__name__, features[-1].std(), same[-1])
print(same)
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/settings.py" "$folder" > "$folder/out" \
  2> "$folder/errors" || { cat "$folder/errors" >&2; exit 1; }
cat "$folder/out"
[ "$(tail -n 1 "$folder/out")" = "[True, True, True, True]" ] || {
  echo "this has changed" >&2
  exit 1
}
