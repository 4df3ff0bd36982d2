"""Opens a model of any kind, and applies it to images in batches; each image gets a result."""

import collections
from collections.abc import Callable
from concurrent import futures
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.data import pipeline
from pipelines.data.bad_images import INPUT_ERRORS, explain_input_error
from pipelines.data.decoding import decode_batch, decode_error
from pipelines.data.order import EvalBatches
from pipelines.data.progress_lines import ProgressLines
from pipelines.errors import NonFiniteError, UserError
from pipelines.evaluation.predictions import top_classes
from pipelines.serving.signatures import make_signatures
from pipelines.stored_models import model_source
from pipelines.stored_models.exported import SIGNATURE, SavedModel
from pipelines.stored_models.stored_model import AS_TRAINED
from vit_tf.images import image_file

BATCH_SIZE = 32
# Rows behind the last batch that the input may have been reading when it failed.
_READ_AHEAD = 1024
# Calls of the model at a time: one decodes images while the other computes. With one, an image of
# 500 x 375 pixels took 3.5 ms of CPU time, with two 3.2 ms, in evaluations 3.3 ms (ViT-Ti/16 at 64
# pixels, 2 busy cores, 2026-11-26).
CALLS = 2


def find_classifier(path, weights="final", label_file=None, opening=AS_TRAINED):
    """Opens a model of any kind.

    Args:
        path: a SavedModel or its parent directory, or a path or name for `model_source.find`.
        weights, label_file: see `model_source.find`.
        opening: see `StoredModel.open_model`.

    Returns:
        The result of `SavedModel.open_classifier`. Two threads may call its `classify` at the same
        time.

    Raises:
        UserError: if there is no model, or the weights of a SavedModel are to be packed or get
            adapters.
    """
    source = model_source.find(path, weights, label_file, model_source.EXPORTS)
    if isinstance(source, SavedModel):
        source.refuse(fused=opening.packed, adapter=opening.adapters is not None)
        return source.open_classifier()
    model, preprocessing, classes = source.open_model(opening)
    if model.head is None:
        raise UserError(
            f"{source.name} has no head (num_classes=0), so it predicts no classes. predict "
            "--embed FILE.npy writes the features of a model that is not exported."
        )
    classify = make_signatures(model, preprocessing, classes)[SIGNATURE]
    return classify, list(classes.names(model.config.num_classes))


class Classifier(NamedTuple):
    """A model that names the most probable classes.

    Attributes:
        call: a function from string `[B]`, encoded images, to a dict with `probabilities` float32
            `[B, K]` and `valid` bool `[B]`. Two threads call it.
        labels: the `K` names of the classes.
        top: the most classes in a result, the most probable first; of equal ones the lower index is
            first.
    """

    call: Callable
    labels: list[str]
    top: int

    output, noun = "probabilities", "probabilities"

    @property
    def size(self) -> int:
        """Number of classes in a result."""
        return min(self.top, len(self.labels))

    def entries(self, values):
        """What the result of each row of `values` has: {"top": [...]}."""
        return ({"top": best} for best in _best(values, self.labels, self.size))


class Embedder(NamedTuple):
    """A model that computes embeddings, what its head reads.

    Attributes:
        call: as of `Classifier`, with `embedding` float32 `[B, D]` in place of `probabilities`.
        size: number `D` of features.
    """

    call: Callable
    size: int

    output, noun = "embedding", "features"

    def entries(self, values):
        """What the result of each row of `values` has: {"embedding": float32 `[D]`}."""
        return ({"embedding": row} for row in values)


def open_classifier(path, weights, label_file, opening, top) -> Classifier:
    """The classifier in a file; arguments and errors of `find_classifier` and `Classifier`."""
    classify, labels = find_classifier(path, weights, label_file, opening)
    return Classifier(classify, labels, top)


def open_embedder(path, weights="final", opening=AS_TRAINED) -> Embedder:
    """The embedder in a file; arguments and errors of `find_classifier`.

    Raises:
        UserError: also if the model is exported, or has features per patch.
    """
    source = model_source.find(path, weights)
    model, preprocessing, _ = source.open_model(opening)
    if not model.config.pooled:
        raise UserError(f"{source.name} is unpooled: it has features per patch, not per image.")

    def embed(contents):
        images, valid = decode_batch(contents, preprocessing)
        return {"embedding": tf.cast(model.features(images), tf.float32), "valid": valid}

    call = tf.function(embed, [tf.TensorSpec([None], tf.string)], autograph=False)
    return Embedder(call, call.get_concrete_function().structured_outputs["embedding"].shape[1])


def in_batches(images, model, *, batch_size=BATCH_SIZE, ranges=None, calls=CALLS):
    """Applies a model to images in stored order.

    Args:
        images: `Images`.
        model: a `Classifier` or `Embedder`.
        batch_size: images that are classified together.
        ranges: pairs of the first index and the index after the last; each pair begins a new
            batch; None takes all.
        calls: calls of the model at a time.

    Yields:
        A list of results for each batch: `{"path": str, "top": [{"label": str, "index": int,
        "probability": float}, ...]}`, or `"embedding": float32 [D]` in place of "top"; in place of
        both for a file that cannot be decoded `"error": str`. For a data set, "id" is first, "path"
        is only there if each image is a file of its own, and "label" has the name of the label, or
        a list of names.

    Raises:
        DataError: if the data cannot be read.
        NonFiniteError: if a value is not finite.
    """
    source = images.source
    ranges = [(0, source.num_examples)] if ranges is None else ranges
    progress = ProgressLines(f"predicting {source}", sum(stop - start for start, stop in ranges))
    done = 0
    batches = _encoded_batches(source, ranges, batch_size)
    for batch, values, valid in _computed(batches, model, calls):
        ids, own_labels = batch["id"].numpy().tolist(), batch["label"].numpy()
        _check_finite(images, np.array(ids)[valid], values[valid], model.noun)
        entries = iter(model.entries(values[valid]))
        found = []
        for row, example_id in enumerate(ids):
            result = _about(images, example_id, own_labels[row])
            if valid[row]:
                result |= next(entries)
            else:
                result["error"] = _reason(images, example_id, batch["image"][row])
            found.append(result)
        yield found
        done += len(found)
        progress.show(done)


def _encoded_batches(source, ranges, batch_size):
    """The batches of `encoded_eval_dataset`, without padding."""
    if not ranges:
        return
    batches, first = iter(pipeline.encoded_eval_dataset(source, ranges, batch_size)), ranges[0][0]
    while True:
        try:
            batch = next(batches, None)
        except INPUT_ERRORS as error:
            every = EvalBatches(source, batch_size)
            last = min((first + _READ_AHEAD) // batch_size + 2, len(every))
            numbers = range(first // batch_size, last)
            raise explain_input_error(error, every, numbers, skips_bad_images=True) from None
        if batch is None:
            return
        count = np.count_nonzero(batch["id"] >= 0)
        first += count
        yield {name: column[:count] for name, column in batch.items()}


def _computed(batches, model, calls):
    """Yields each batch with the model's values, and which of its images were decoded."""

    def run(batch):
        outputs = model.call(batch["image"])
        return batch, outputs[model.output].numpy(), outputs["valid"].numpy()

    with futures.ThreadPoolExecutor(calls) as threads:
        running = collections.deque()
        for batch in batches:
            running.append(threads.submit(run, batch))
            if len(running) == calls:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def _about(images, example_id, label):
    """What a result says about the image itself."""
    source = images.source
    path = source.path(example_id)
    about = {} if path is None else {"path": path}
    if not images.have_labels:
        return about
    if source.multi_label:
        named = [source.labels[index] for index in np.flatnonzero(label)]
    else:
        named = source.labels[label]
    return {"id": example_id, **about, "label": named}


def _check_finite(images, ids, values, noun):
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        raise NonFiniteError(
            f"The model gives {noun} of {images.name(int(ids[bad][0]))} that are NaN. Do "
            "its weights have such values? Choose an earlier checkpoint."
        )


def _best(probabilities, labels, top):
    """The most probable classes of each image."""
    best = top_classes(probabilities, top)
    shares = np.take_along_axis(probabilities, best, axis=1)
    for row in zip(best.tolist(), shares.tolist(), strict=True):
        yield [
            {"label": labels[index], "index": index, "probability": share}
            for index, share in zip(*row, strict=True)
        ]


def _reason(images, example_id, content):
    """Why an image has no result."""
    if error := images.errors.get(example_id):
        return error
    reason = decode_error(content.numpy()) or "the model was exported with a smaller --max_pixels"
    return image_file.undecodable(images.name(example_id), reason)
