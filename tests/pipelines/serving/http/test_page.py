"""The page: its files, what it says about an image, and all of it in a browser."""

import base64
import dataclasses
import io
import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

import vit_tf
from pipelines.serving.http.model import open_model
from tests import browser
from tests.pipelines import encoded
from tests.pipelines.serving.http.running import as_base64, predict, running, send
from tests.vit_tf import tiny
from vit_tf.analysis.attention_maps import attention_maps
from vit_tf.images.decoding import decode_image


def explain(served, content):
    """The answer for an image file."""
    status, headers, body = send(served, "POST", "/explain", content)
    assert headers["Content-Type"] == "application/json"
    return status, json.loads(body)


def sideways(side=24):
    """A photo that is stored sideways, and the upright one as Pillow has it, with other sides."""
    pixels = np.random.default_rng(0).integers(0, 256, (side // 8, side // 6, 3), np.uint8)
    image = Image.fromarray(pixels).resize((2 * side, side))
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    image.save(file, "JPEG", quality=95, exif=exif)
    stored = Image.fromarray(tf.io.decode_jpeg(file.getvalue()).numpy())
    stored.getexif()[0x0112] = 6
    return file.getvalue(), np.asarray(ImageOps.exif_transpose(stored))


def seen(answer):
    """The picture of an answer."""
    kind, _, content = answer["seen"].partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


@pytest.fixture(scope="module")
def served():
    with running(open_model("shipped")) as made:
        yield made


def test_files(served):
    """Nothing comes from elsewhere, and no text of a model becomes HTML."""
    status, headers, body = send(served, "GET", "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
    page = body.decode()
    assert "{{" not in page and "TensorFlow Serving, which is for production" in page
    links = set(re.findall(r'(?:src|href|data-path)="([^"]*)"', page)) - {"data:,"}
    assert len([x for x in links if x.startswith("/samples/")]) == 8
    for link in links:
        assert re.fullmatch(r"/[\w./]+", link)
        status, headers, content = send(served, "GET", link)
        assert status == 200 and len(content) == int(headers["Content-Length"])
        if link.startswith("/samples/"):
            assert decode_image(content).shape[2] == 3
    titles = re.findall(r"<span>([^<]*)</span></button>", page)
    assert len([x for x in titles if x.startswith("photo")]) == 2 and len(set(titles)) == 8


def test_names_are_no_html(served):
    model = dataclasses.replace(
        served.application._page._model, name="<script>alert(1)</script>{{ samples }}"
    )
    with running(model) as other:
        page = send(other, "GET", "/")[2]
        assert b"&lt;script&gt;alert(1)" in page and b"<script>" not in page


@pytest.mark.parametrize("form", ["npz", "saved_model"])
def test_an_answer(models, form):
    """Its classes equal REST's, its map the model's; also for a turned photo."""
    model, preprocessing, paths = models
    content, upright = sideways()
    with running(open_model(str(paths[form]))) as served:
        status, answer = explain(served, content)
        request = {"signature_name": "serving_bytes", "inputs": [as_base64(content)]}
        outputs = predict(served, **request)[1]["outputs"]
    assert status == 200
    assert [x["label"] for x in answer["top"]] == outputs["top_classes"][0]
    np.testing.assert_allclose(
        [x["probability"] for x in answer["top"]], outputs["top_probabilities"][0], rtol=1e-6
    )
    image = upright if preprocessing.exif == "apply" else decode_image(content).numpy()
    assert (answer["height"], answer["width"]) == image.shape[:2]
    maps = attention_maps(model, preprocessing(image)[None])[0].numpy().mean(axis=1)
    found = answer["attention"]
    layers = np.reshape(found["layers"], [-1, found["rows"], found["columns"]])
    np.testing.assert_allclose(layers, maps, atol=2e-6)
    if preprocessing.resize == "direct":
        np.testing.assert_array_equal(seen(answer), image)


@pytest.mark.parametrize("exif", ["apply", "ignore"])
def test_the_picture_is_what_the_model_sees(tmp_path, exif):
    """The central crop of the turned photo, and a large one reduced; no head, no classes."""
    rule = vit_tf.Preprocessing(image_size=(8, 8), resize="resize_small", resize_to=16, exif=exif)
    model = vit_tf.create_model(tiny.config(num_classes=0, image_size=(8, 8)))
    vit_tf.save_npz(model, tmp_path / "model.npz", rule)
    content, upright = sideways()
    image = upright if exif == "apply" else decode_image(content).numpy()
    with running(open_model(str(tmp_path / "model.npz"))) as served:
        answer = explain(served, content)[1]
        large = explain(served, tf.io.encode_jpeg(np.zeros([900, 1400, 3], np.uint8)).numpy())[1]
    height, width = image.shape[:2]
    assert (answer["height"], answer["width"]) == (height, width) and "top" not in answer
    expected = image[height // 2 - 6 : height // 2 + 6, width // 2 - 6 : width // 2 + 6]
    np.testing.assert_array_equal(seen(answer), expected)
    assert seen(large).shape == (450, 448, 3)


def test_models_without_attention(tmp_path, exported):
    """A ResNet, and an export that does not say how it sees images."""
    model = vit_tf.create_model(
        vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=(16, 16), num_classes=3)
    )
    rule = vit_tf.Preprocessing(image_size=model.config.image_size)
    vit_tf.save_npz(model, tmp_path / "model.npz", rule)
    with running(open_model(str(tmp_path / "model.npz"))) as served:
        answer = explain(served, encoded.every_format()[0][0])[1]
    assert len(answer["top"]) == 3 and "seen" in answer and "attention" not in answer
    shutil.copytree(exported.folder / "portable", tmp_path / "old")
    (tmp_path / "old" / "assets.extra" / "preprocessing.json").unlink()
    with running(open_model(str(tmp_path / "old"))) as served:
        answer = explain(served, encoded.every_format()[0][0])[1]
    assert answer["top"] and not {"seen", "attention"} & set(answer)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "The file cannot be decoded: it is empty"),
        (b"%PDF-1.4", "The file cannot be decoded"),
        (tf.io.encode_jpeg(np.zeros([50, 50, 3], np.uint8)).numpy()[:300], "cannot be decoded"),
        (tf.io.encode_png(np.zeros([8000, 8000, 3], np.uint8)).numpy(), "more than 50,000,000"),
    ],
    ids=["empty", "PDF", "cut", "large"],
)
def test_files_that_are_no_image(served, content, message):
    status, answer = explain(served, content)
    assert status == 400 and list(answer) == ["error"] and message in answer["error"]


@pytest.mark.process
@pytest.mark.skipif(browser.CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("is_phone", [False, True], ids=["desk", "phone"])
def test_in_a_browser(served, tmp_path, is_phone):
    """A real upload, a sample, a bad file; bars, the map of each layer, no script errors."""
    photo = tmp_path / "a photo.jpg"
    photo.write_bytes(sideways(96)[0])
    (tmp_path / "text.png").write_bytes(b"no image")
    size = (390, 844) if is_phone else (1200, 800)
    page = browser.Browser(tmp_path / "profile", *size, is_phone=is_phone)
    try:
        page.open(served.url)
        page.upload("#file", photo)
        page.wait("!document.getElementById('result').hidden")
        status, answer = explain(served, photo.read_bytes())
        assert (
            status == 200 and page.run("document.getElementById('title').innerText") == photo.name
        )
        bars = page.run("[...document.querySelectorAll('.bar')].map(x => x.innerText.split('\\n'))")
        assert [label for label, _ in bars] == [x["label"] for x in answer["top"]]
        assert [share for _, share in bars] == [
            f"{x['probability']:.1%}".replace("%", " %") for x in answer["top"]
        ]
        assert re.search(
            r"\d+ x \d+ pixels\. .* ms", page.run("document.getElementById('time').innerText")
        )
        # The whole page fits the screen, also with the result.
        assert page.run("document.documentElement.scrollWidth") <= size[0]
        layer = "document.getElementById('layer')"
        pictures = set()
        for index in range(len(answer["attention"]["layers"])):
            page.run(f"{layer}.value = {index + 1}; {layer}.dispatchEvent(new Event('input'))")
            pictures.add(page.run("document.getElementById('map').toDataURL()"))
        assert len(pictures) == len(answer["attention"]["layers"])
        shown = "document.getElementById('map').style.opacity"
        page.run("document.getElementById('strength').value = 0.25")
        page.run("document.getElementById('strength').dispatchEvent(new Event('input'))")
        assert page.run(shown) == "0.25"
        dropped = "new DataTransfer(); data.items.add(new File([bytes], 'dropped.png'))"
        png = base64.b64encode(encoded.every_format()[0][0]).decode()
        page.run(
            f"{{ const bytes = Uint8Array.from(atob('{png}'), x => x.charCodeAt(0)); const data = "
            f"{dropped}; document.dispatchEvent(new DragEvent('drop', {{dataTransfer: data}})) }}"
        )
        page.wait("document.getElementById('title').innerText === 'dropped.png'")
        page.upload("#file", tmp_path / "text.png")
        page.wait("document.getElementById('status').classList.contains('wrong')")
        said = page.run("document.getElementById('status').innerText")
        assert said.startswith("text.png: The file cannot be decoded")
        page.run("document.querySelector('.sample').click()")
        page.wait("document.getElementById('title').innerText.startsWith('photo')")
        used = page.run("performance.getEntriesByType('resource').map(x => x.name)")
        assert all(x.startswith((served.url, "data:", "blob:")) for x in used)
        # The browser itself reports the answer 400.
        errors = [x for x in page.errors if "400" not in json.dumps(x)]
        assert errors == []
    finally:
        page.close()
