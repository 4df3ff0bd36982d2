"""Computes images of calls that come at the same time together, inside an exported model."""

import uuid

import tensorflow as tf

_MOST_WAITING = 1000  # Batches; a call beyond them fails.


def join_calls(stages, image_size, num_classes, most):
    """Returns serving stages of which the first one computes the logits of several calls together.

    While one batch is computed, the images of further calls wait, and form the next batch. So a
    lone call does not wait. The batches are TensorFlow's own (`BatchFunction`), without a time to
    wait in: the export needs no settings where it is served.

    Args:
        stages: `ServingStages` of a whole model.
        image_size: height and width of the images that its first stage reads.
        num_classes: number of logits.
        most: the largest number of images in a batch. Calls with as many or more, and calls
            without images, are computed alone. None: all calls are.
    """
    if most is None:
        return stages
    functions = {}

    def logits_of(images):
        return tf.cast(stages.second(stages.first(images)), tf.float32)

    def first(images):
        images = tf.ensure_shape(images, [None, *image_size, 3])
        if images.dtype not in functions:
            spec = tf.TensorSpec(images.shape, images.dtype)
            function = tf.function(logits_of, [spec], autograph=False)
            # In a process the queue of two models would be the same if their names were.
            functions[images.dtype] = function.get_concrete_function(), uuid.uuid4().hex
        function, name = functions[images.dtype]

        def together():
            [joined] = tf.raw_ops.BatchFunction(
                in_tensors=[images],
                captured_tensors=function.captured_inputs,
                f=function,
                num_batch_threads=1,
                max_batch_size=most,
                batch_timeout_micros=0,
                max_enqueued_batches=_MOST_WAITING,
                Tout=[tf.float32],
                shared_name=name,
            )
            return tf.ensure_shape(joined, [None, num_classes])

        count = tf.shape(images)[0]
        return tf.cond((count > 0) & (count < most), together, lambda: function(images))

    spec = tf.TensorSpec([None, num_classes])
    return stages._replace(first=first, second=tf.identity, spec=spec)
