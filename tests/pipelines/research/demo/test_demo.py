"""The demo: its checks can fail, it changes only its own files, and it runs completely."""

import json
import os
import shlex
import types

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines import errors
from pipelines.config import recipes
from pipelines.data.sources.source import Examples
from pipelines.distribution import strategies
from pipelines.research.demo import checks as demo_checks
from pipelines.research.demo import page as demo_page
from pipelines.research.demo import stages as demo_stages
from pipelines.runs.workdir import Workdir
from tests.pipelines.process import assert_user_error
from tests.pipelines.reports.parsed_page import ParsedPage

# Too few steps to learn; the output of the demo must still be complete.
SHORT = ("train.steps=4", "schedule.warmup_steps=1", "train.batch_size=16")
ACCURACY, TIME = "Accuracy on test images", "Time of the demo"


def _names(found, passed):
    return [check.name for check in found if check.passed is passed]


class TestChecks:
    served = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])

    def _check(self, accuracy=2 / 3, examples=3, right=2, served=served):
        means = {"accuracy": accuracy, "examples": examples}
        return demo_checks.accuracy_checks(means, 3, right, self.served, served)

    def test_each_number_can_fail(self):
        assert _names(self._check(accuracy=1.0, right=3), False) == []
        assert _names(self._check(), False) == [ACCURACY]
        assert "Test images counted, each once" in _names(self._check(examples=4, right=3), False)
        assert "Right answers of the service" in _names(self._check(right=1), False)
        other = self.served + [[0, 0], [2e-5, -2e-5], [0, 0]]
        assert "Served probabilities against the model's" in _names(
            self._check(served=other), False
        )

    def test_accuracy_of_exactly_the_limit_passes(self):
        assert ACCURACY in _names(self._check(accuracy=0.95), True)
        assert ACCURACY in _names(self._check(accuracy=0.9499), False)

    def test_attention_that_does_not_sum_to_one_fails(self):
        model = vit_tf.create_model("ViT-Ti/16", image_size=32, layers=1, num_classes=3)
        rows = np.full((2, 1, 3, 5), 0.2)
        assert _names(demo_checks.model_checks(model, rows), False) == []
        rows[1, 0, 2, 3] += 1e-4
        assert _names(demo_checks.model_checks(model, rows), False) == [
            "Attention weights of the class token"
        ]

    def test_time_is_judged_and_speed_is_not(self):
        lines = [
            {"images_per_second": None},
            {"images_per_second": 1200.0},
            {"eval_loss": 1.0},
            {"images_per_second": 1000.0},
        ]
        time, speed = demo_checks.speed_checks(299.0, lines)
        assert time.passed and speed.passed is None
        assert (time.value, speed.value) == ("5.0 min", "1,100 images/s")
        assert demo_checks.speed_checks(301.0, [])[0].passed is False
        assert demo_checks.speed_checks(1.0, [])[1].value == "not measured"

    @pytest.mark.parametrize(
        ("name", "fields", "count"),
        [
            ("ViT-B/16", {"num_classes": 1000}, 86_567_656),
            ("ViT-L/32", {"num_classes": 1000, "image_size": 384}, 306_632_680),
            ("ViT-Ti/16", {"num_classes": 10, "image_size": (48, 96)}, None),
        ],
    )
    def test_parameter_formula(self, name, fields, count):
        """The published counts, and a rectangular model."""
        config = vit_tf.config.variants.get_variant(name).replace(**fields)
        expected = count or vit_tf.create_model(name, **fields).count_params()
        assert demo_checks.count_parameters(config) == expected


class TestExamplesToShow:
    labels = np.array([0, 0, 1, 1, 2, 2] * 10)

    def _choose(self, predicted, sure=None):
        probabilities = np.full((60, 3), 0.1)
        probabilities[np.arange(60), predicted] = 0.5 if sure is None else sure
        return demo_page._choose_examples(self.labels, predicted, probabilities)

    def test_classes_take_turns(self):
        chosen = self._choose(self.labels.copy())
        assert list(self.labels[chosen]) == ([0, 1, 2] * 6)[:16]
        assert len(set(chosen)) == 16

    def test_the_surest_mistakes_come_last(self):
        predicted = self.labels.copy()
        predicted[[3, 10, 20, 30, 40]] = (self.labels[[3, 10, 20, 30, 40]] + 1) % 3
        sure = np.full(60, 0.5)
        sure[[3, 10, 20, 30, 40]] = [0.6, 0.9, 0.55, 0.8, 0.7]
        chosen = self._choose(predicted, sure)
        assert list(chosen[-4:]) == [10, 30, 40, 3] and len(chosen) == 16
        assert (predicted[chosen[:-4]] == self.labels[chosen[:-4]]).all()

    def test_a_model_that_is_always_wrong(self):
        assert len(self._choose((self.labels + 1) % 3)) == 4


class TestHostileText:
    """Names of a user's files appear in the page as text, and in shell commands as one word."""

    labels = ("<script>alert(1)</script>", "\"' onload='x' & <b>")

    def test_labels(self, tmp_path):
        """In the whole page of a run with two classes."""
        demo_page.write(tmp_path / "report.html", self._results(tmp_path))
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        page = ParsedPage(text)
        page.check_self_contained()
        assert "<script" not in text and "& <b>" not in text
        assert page.text("h2")[0] == "Steps of the demo" and page.text("h2")[-1] == "Next commands"
        assert page.text("span").count(self.labels[0]) == 4  # Two names, each with a bar.
        assert page.text("span").count(self.labels[1]) == 2
        alt = f"a {self.labels[1]}, classified as {self.labels[0]}"
        assert len(page.all("img", alt=alt)) == 1
        # Two examples, a row of images, one of the layer, and one of their product.
        assert len(page.all("img")) == 2 + 3 * 2 and len(page.all("svg")) == 4

    def _results(self, path):
        model = vit_tf.create_model("ViT-Ti/16", image_size=32, layers=1, num_classes=2)
        pretraining, finetuning = demo_stages.recipes(path)
        images = [tf.io.encode_png(np.zeros([4, 4, 3], np.uint8)).numpy()] * 2
        values = {"loss": 1.0, "eval_accuracy": 0.5, "images_per_second": 10.0}
        metrics = [{"step": step, **values} for step in (1, 2)]
        probabilities = np.array([[0.9, 0.1], [0.8, 0.2]])
        means = {"accuracy": 0.5, "examples": 2}
        checks = demo_checks.accuracy_checks(means, 2, 1, probabilities, probabilities)
        checks += demo_checks.model_checks(model, np.full((2, 1, 3, 5), 0.2))
        stages = ("pre-training", "fine-tuning", "evaluating", "exporting", "serving")
        return demo_page.DemoResults(
            pretraining=pretraining,
            finetuning=finetuning,
            pretraining_metrics=metrics,
            finetuning_metrics=metrics,
            model=model,
            export=types.SimpleNamespace(size=1000),
            labels=self.labels,
            examples=Examples(images, np.array([0, 1]), np.arange(2)),
            probabilities=probabilities,
            inputs=np.zeros([2, 32, 32, 3], np.float32),
            attention=np.full([2, 1, 2, 2], 0.2),
            checks=checks,
            seconds=dict.fromkeys(stages, 1.0),
        )

    @pytest.mark.parametrize("name", ["my runs", "a'b", 'a"b & <c>', "$(touch x)"])
    def test_paths_in_commands(self, name):
        predict, evaluate, tensorboard, _ = map(
            shlex.split, demo_page.next_commands(f"runs/{name}").splitlines()
        )
        assert predict[-1] == f"runs/{name}/export/portable"
        assert evaluate[4] == f"runs/{name}/finetune"
        assert tensorboard[-1] == f"runs/{name}"


class TestDirectory:
    def test_a_new_directory_is_marked(self, tmp_path):
        marker = demo_stages.prepare_directory(tmp_path / "a" / "b")
        with open(marker, encoding="utf-8") as file:
            assert json.load(file) == {"command": "pipelines.demo", "finished": False}

    def test_other_directories_are_refused_untouched(self, tmp_path):
        (tmp_path / "pretrain").mkdir()
        (tmp_path / "file").write_text("mine")
        with pytest.raises(errors.UserError, match="not made by the demo"):
            demo_stages.prepare_directory(tmp_path)
        with pytest.raises(errors.UserError, match="not made by the demo"):
            demo_stages.prepare_directory(tmp_path / "file")
        assert sorted(os.listdir(tmp_path)) == ["file", "pretrain"]
        (tmp_path / "demo.json").write_text('{"finished": true}')
        with pytest.raises(errors.UserError, match="was not written by the demo"):
            demo_stages.prepare_directory(tmp_path)
        assert sorted(os.listdir(tmp_path)) == ["demo.json", "file", "pretrain"]

    @pytest.mark.parametrize("finished", [True, False])
    def test_a_finished_demo_is_cleared_and_an_interrupted_one_kept(self, tmp_path, finished):
        marker = demo_stages.prepare_directory(tmp_path)
        for name in ("pretrain", "finetune", "export", "notes"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text("content")
        demo_stages.write_json(marker, {"command": "pipelines.demo", "finished": finished})
        demo_stages.prepare_directory(tmp_path)
        kept = {"demo.json", "notes"} | (set() if finished else {"pretrain", "finetune", "export"})
        assert set(os.listdir(tmp_path)) == kept
        with open(marker, encoding="utf-8") as file:
            assert json.load(file)["finished"] is False


class TestRecipes:
    def test_are_what_the_demo_promises(self, tmp_path):
        pretraining, finetuning = demo_stages.recipes(tmp_path)
        assert (pretraining.data.name, finetuning.data.name) == ("digits/low", "digits")
        assert min(finetuning.model.image_size) > max(pretraining.model.image_size)
        assert finetuning.init_from == str(tmp_path / "pretrain")
        for recipe in (pretraining, finetuning):
            assert recipe.data.train_split == "auto" and recipe.data.eval_split == "validation"
            width = recipes.get_recipe("digits").model.fields["hidden_size"]
            assert recipe.model.fields["hidden_size"] == width

    def test_overrides_reach_both(self, tmp_path):
        for recipe in demo_stages.recipes(tmp_path, ["train.steps=7", "schedule.warmup_steps=2"]):
            assert recipe.train.steps == 7

    @pytest.mark.parametrize("assignment", ["data.eval_split=test", "model.layers=2", "trian=1"])
    def test_what_the_demo_is_about_stays(self, tmp_path, assignment):
        with pytest.raises(errors.UserError, match=f"Received: --set {assignment}"):
            demo_stages.recipes(tmp_path, [assignment])


def test_wrong_flags_leave_nothing(command, tmp_path):
    arguments = ["--workdir", tmp_path / "demo", "--set", "model.layers=2"]
    assert_user_error(command("demo", *arguments), "model.layers=2")
    assert os.listdir(tmp_path) == []


@pytest.mark.heavy("demo")
def test_runs_from_end_to_end(tmp_path, logged):
    """A shortened demo fails only on its accuracy; the next start begins a new one."""
    strategy = strategies.make_strategy("one_device")
    with pytest.raises(errors.RunError, match=f"Not as expected: {ACCURACY}"):
        demo_stages.run(tmp_path, strategy, SHORT)

    out = logged.take()
    for number in range(1, 7):
        assert f"\n{number}/6 " in out
    assert "resized positions from 4 x 4 to 6 x 6" in out
    assert f"FAIL  {ACCURACY}" in out and "PASS  Test images counted" in out
    assert str(tmp_path / "report.html") in out and "python -m pipelines.predict" in out

    record = json.loads((tmp_path / "demo.json").read_text())
    assert record["finished"] is True
    by_name = {check["name"]: check for check in record["checks"]}
    judged = {name: check["passed"] for name, check in by_name.items() if name != TIME}
    assert [name for name, passed in judged.items() if passed is False] == [ACCURACY]
    assert by_name["Test images counted, each once"]["value"] == "300"
    assert by_name["Right answers of the service"]["passed"] is True

    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"checks failed: {ACCURACY}" in text
    for heading in (
        "Steps of the demo",
        "Predictions on test images",
        "Learning curves",
        "Patch filters",
        "Position similarity",
        "Attention of the class token",
        "Numbers",
        "Next commands",
    ):
        assert heading in text
    # At most 16 examples, and ten columns: the image, each layer, and their product.
    layers = Workdir(tmp_path / "finetune").read_experiment().model.config(10).layers
    assert 10 * (layers + 2) < text.count("<img") <= 16 + 10 * (layers + 2)
    assert text.count('<svg class="chart"') == 4
    assert "http:" not in text and "https:" not in text

    demo_stages.prepare_directory(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["data", "demo.json", "report.html"]
