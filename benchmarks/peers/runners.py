"""The calls of a worker for each kind of system; imports a system's package only when it is used.

A runner is created from the folder of a model's files, the number of threads, and the options of
its row. `versions` names its packages. `prepare(images)` takes uint8 `[B, H, W, 3]` and returns a
function without arguments that computes the logits, float32 `[B, K]`, as a NumPy array. The systems
of other projects get float input that is normalized beforehand; exports of this project get uint8.
Every result of `prepare` may be called from a thread of its own, beside the others.
"""

import json
import runpy

import numpy as np


def normalized(images, channels_first=True):
    """float32 input in [-1, 1]."""
    values = images.astype(np.float32) * np.float32(2 / 255) - 1
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2) if channels_first else values)


def start_tensorflow(threads):
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    return tf


class SavedModel:
    """An export of this project, called as its users do: `serving_uint8`, all its outputs."""

    def __init__(self, folder, threads, options):
        self._tf = start_tensorflow(threads)
        path = folder / options["export"]
        loader = path / "assets.extra" / "load_ops.py"
        if loader.exists():
            runpy.run_path(str(loader))
        self._model = self._tf.saved_model.load(str(path))
        self._serve = self._model.signatures["serving_uint8"]
        self.versions = {"tensorflow": self._tf.__version__}

    def prepare(self, images):
        given = self._tf.constant(images)
        return lambda: self._serve(images=given)["logits"].numpy()


class OpenVino:
    """A request per batch, compiled for its shape."""

    def __init__(self, folder, threads, options):
        import openvino

        self._openvino, self._core = openvino, openvino.Core()
        self._path = folder / "model.onnx"
        self._settings = options["settings"] | {"INFERENCE_NUM_THREADS": threads}
        self._shape = self._compiled = None
        self.versions = {"openvino": openvino.__version__.partition("-")[0]}

    def prepare(self, images):
        floats = normalized(images)
        request = self._compile(floats.shape).create_infer_request()
        request.set_input_tensor(self._openvino.Tensor(floats, shared_memory=False))

        def call():
            request.infer()
            return np.array(request.get_output_tensor().data)

        return call

    def _compile(self, shape):
        if self._shape != shape:
            self._compiled = None  # Frees its copy of the weights first.
            model = self._core.read_model(self._path)
            model.reshape(list(shape))
            self._compiled = self._core.compile_model(model, "CPU", self._settings)
            self._shape = shape
        return self._compiled


class OpenVinoQueue(OpenVino):
    """A batch as requests of one image each, which run at the same time."""

    def prepare(self, images):
        floats = normalized(images)
        compiled = self._compile((1, *floats.shape[1:]))
        logits = [None] * len(floats)
        queue = self._openvino.AsyncInferQueue(compiled)

        def keep(request, index):
            logits[index] = np.array(request.get_output_tensor().data)

        queue.set_callback(keep)

        def call():
            for index in range(len(floats)):
                queue.start_async(floats[index : index + 1], userdata=index)
            queue.wait_all()
            return np.concatenate(logits)

        return call


class OnnxRuntime:
    def __init__(self, folder, threads, options):
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            folder / "model.onnx", settings, providers=["CPUExecutionProvider"]
        )
        self.versions = {"onnxruntime": onnxruntime.__version__}

    def prepare(self, images):
        given = {self._session.get_inputs()[0].name: normalized(images)}
        return lambda: self._session.run(None, given)[0]


class PyTorch:
    """The model of timm, eager with SDPA, or compiled; in bfloat16 with all weights in it."""

    weights_in_dtype = True

    def __init__(self, folder, threads, options):
        import timm
        import torch

        torch.set_num_threads(threads)
        self._torch = torch
        narrow = options["dtype"] == "bfloat16" and self.weights_in_dtype
        self._dtype = torch.bfloat16 if narrow else torch.float32
        model = timm.create_model(f"local-dir:{folder / 'timm'}", pretrained=True)
        self._model = model.eval().to(self._dtype)
        if options.get("compile"):
            self._model = torch.compile(self._model)
        self.versions = {"torch": torch.__version__, "timm": timm.__version__}

    def prepare(self, images):
        given = self._torch.from_numpy(normalized(images)).to(self._dtype)

        def call():
            with self._torch.inference_mode():
                return self._model(given).float().numpy()

        return call


class KerasHub:
    """The ViT of Keras Hub as a `tf.function` of a fixed shape."""

    def __init__(self, folder, threads, options):
        self._tf = start_tensorflow(threads)
        import keras
        import keras_hub

        policy = "mixed_bfloat16" if options["dtype"] == "bfloat16" else "float32"
        fields = json.loads((folder / "fields.json").read_text())
        self._model = keras_hub.models.ViTImageClassifier(
            backbone=keras_hub.models.ViTBackbone(
                image_shape=(*fields["image_size"], 3),
                patch_size=fields["patch_size"],
                num_layers=fields["layers"],
                num_heads=fields["heads"],
                hidden_dim=fields["hidden_size"],
                mlp_dim=fields["mlp_size"],
                dtype=policy,
            ),
            num_classes=fields["num_classes"],
        )
        # It always builds the exact GELU.
        approximate = fields["activation"] == "gelu_tanh"
        encoder = self._model.backbone.get_layer("vit_encoder")
        for block in encoder.encoder_layers:
            block.mlp.dense_1.activation = lambda x: keras.activations.gelu(x, approximate)
        with np.load(folder / "weights.npz") as arrays:
            _assign_keras_hub(self._model, encoder, dict(arrays))
        self.versions = {"keras-hub": keras_hub.__version__, "tensorflow": self._tf.__version__}

    def prepare(self, images):
        given = self._tf.constant(normalized(images, channels_first=False))
        serve = self._tf.function(lambda x: self._model(x, training=False))
        return lambda: self._tf.cast(serve(given), self._tf.float32).numpy()


def _assign_keras_hub(model, encoder, arrays):
    """Assigns arrays of the published layout."""
    embedding = model.backbone.get_layer("vit_patching_and_embedding")
    pairs = [
        (embedding.class_token, "cls"),
        (embedding.patch_embedding.kernel, "embedding/kernel"),
        (embedding.patch_embedding.bias, "embedding/bias"),
        (embedding.position_embedding.embeddings, "Transformer/posembed_input/pos_embedding"),
        *_norm(encoder.layer_norm, "Transformer/encoder_norm"),
        *_dense(model.output_dense, "head"),
    ]
    for number, block in enumerate(encoder.encoder_layers):
        place = f"Transformer/encoderblock_{number}"
        attention, parts = f"{place}/MultiHeadDotProductAttention_1", block.mha
        pairs += [
            *_norm(block.layer_norm_1, f"{place}/LayerNorm_0"),
            *_dense(parts.query_dense, f"{attention}/query"),
            *_dense(parts.key_dense, f"{attention}/key"),
            *_dense(parts.value_dense, f"{attention}/value"),
            *_dense(parts.output_dense, f"{attention}/out"),
            *_norm(block.layer_norm_2, f"{place}/LayerNorm_2"),
            *_dense(block.mlp.dense_1, f"{place}/MlpBlock_3/Dense_0"),
            *_dense(block.mlp.dense_2, f"{place}/MlpBlock_3/Dense_1"),
        ]
    if len(pairs) != len(arrays):
        raise SystemExit(f"The file has {len(arrays)} arrays, Keras Hub's model {len(pairs)}.")
    for variable, key in pairs:
        variable.assign(arrays[key].reshape(variable.shape))


def _dense(layer, place):
    return [(layer.kernel, f"{place}/kernel"), (layer.bias, f"{place}/bias")]


def _norm(layer, place):
    return [(layer.gamma, f"{place}/scale"), (layer.beta, f"{place}/bias")]
