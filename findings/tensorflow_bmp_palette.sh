#!/bin/sh
# Guess: tf.io.decode_bmp applies the palette of a BMP with 8 bits per pixel, or refuses the file.
#
# Seen with TensorFlow 2.20.0 and Pillow 12.0.0 (x86-64, 2026-11-28): it does neither. The indices
# into the palette come back as the gray values of one channel, without an error, and
# tf.io.decode_image(channels=3) repeats them three times. Pillow writes such files for images of
# mode P, and for gray images too, whose palette then happens to be the identity: those are right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  tensorflow==2.20.0 pillow==12.0.0
cat > "$folder/palette.py" <<'PYTHON'
import io

import numpy as np
import PIL
import tensorflow as tf
from PIL import Image


def stored(image):
    data = io.BytesIO()
    image.save(data, "BMP")
    return data.getvalue()


colors = Image.new("P", (3, 1))
colors.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
colors.putdata([0, 1, 2])
gray = Image.fromarray(np.array([[0, 100, 200]], np.uint8))
print(f"TensorFlow {tf.__version__}, Pillow {PIL.__version__}")
right = []
for name, image in (("palette", colors), ("gray", gray)):
    expected = np.asarray(image.convert("RGB"))
    found = tf.io.decode_image(stored(image), channels=3).numpy()
    print(f"{name}: Pillow {expected.tolist()}, TensorFlow {found.tolist()}")
    right.append(bool((found == expected).all()))
print(right)
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/palette.py" > "$folder/out" \
  2> "$folder/errors" || { cat "$folder/errors" >&2; exit 1; }
cat "$folder/out"
[ "$(tail -n 1 "$folder/out")" = "[False, True]" ] || {
  echo "this has changed" >&2
  exit 1
}
