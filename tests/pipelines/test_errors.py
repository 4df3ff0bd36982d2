"""TensorFlow's errors are shortened for users."""

import pytest
import tensorflow as tf

from pipelines.errors import first_line

WHERE = (
    'Detected at node Substr defined at (most recent call last):\n  File "<string>", line 1, in '
    '<module>\n\n  File "/lib/runpy.py", line 198, in run\n\n'
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Expected image (JPEG). [Op:DecodeImage]", "Expected image (JPEG)"),
        ("{{function_node __wrapped__A}} no JPEG [Op:A] name: ", "no JPEG"),
        (
            "Graph execution error:\n\npos 786 out of range [Op:__inference_f_645]",
            "pos 786 out of range",
        ),
        (f"Graph execution error:\n\n{WHERE}aborted\nmore\n\t [[{{{{node a}}}}]]", "aborted"),
        (f"Graph execution error:\n\n{WHERE}assertion failed: [It is no JPEG]\n", "It is no JPEG"),
    ],
)
def test_first_line(message, expected):
    assert first_line(tf.errors.InvalidArgumentError(None, None, message)) == expected


def test_of_a_real_graph():
    @tf.function
    def fail(text):
        return tf.strings.substr(text, 9, 1)

    with pytest.raises(tf.errors.OpError) as error:
        fail(tf.constant("abc"))
    assert first_line(error.value).startswith("pos 9 out of range for string")
