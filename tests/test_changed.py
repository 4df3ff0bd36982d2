"""`make check` chooses the right test modules for a change."""

import pytest

from tests import changed

SOURCES = {
    "vit_tf/__init__.py": "",
    "vit_tf/cost.py": "",
    "vit_tf/create.py": "from vit_tf.layers import positions",
    "vit_tf/families.py": "COST = 'vit_tf.analysis.vit_cost:parts'",
    "vit_tf/analysis/vit_cost.py": "",
    "vit_tf/layers/grid.py": "",
    "vit_tf/layers/positions.py": "from vit_tf.layers.grid import rows",
    "vit_tf/formats/npz/keys.py": "",
    "custom_ops/attention.py": "",
    "vit_tf/images/crops.py": "",
    "vit_tf/preprocessing.py": "from vit_tf.images import crops",
    "pipelines/export.py": "import vit_tf.create",
    "tests/pipelines/tiny.py": "import vit_tf.cost",
    "tests/custom_ops/test_ops_attention.py": "from custom_ops.attention import scale",
    "tests/custom_ops/test_install.py": "from custom_ops import attention",
    "tests/golden_files.py": "",
    "tests/vit_tf/test_import.py": "import vit_tf",
    "tests/vit_tf/test_cost.py": "import vit_tf.cost",
    "tests/vit_tf/test_cost_of_axes.py": "import vit_tf.cost",
    "tests/vit_tf/test_costs.py": "",
    "tests/vit_tf/test_families.py": "from vit_tf import families",
    "tests/vit_tf/formats/test_npz.py": "",
    "tests/vit_tf/layers/test_tokens.py": "from vit_tf.layers.positions import table",
    "tests/vit_tf/test_preprocessing.py": "",
    "tests/vit_tf/models/test_golden.py": "",
    "tests/pipelines/test_crops.py": "from vit_tf.images import crops",
    "tests/pipelines/test_commands.py": "from tests.pipelines import tiny\nstart('export')",
    "tests/test_packaging.py": "read('pyproject.toml')",
}


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        # A changed test module selects itself; a deleted one selects nothing.
        ("tests/vit_tf/test_costs.py", ["vit_tf/test_costs"]),
        ("tests/vit_tf/test_gone.py", []),
        # Test modules named after the module: with more words, without the prefix of the ops, after
        # the folder.
        ("vit_tf/cost.py", ["vit_tf/test_cost", "vit_tf/test_cost_of_axes"]),
        # They, and the modules that import it.
        (
            "custom_ops/attention.py",
            ["custom_ops/test_install", "custom_ops/test_ops_attention"],
        ),
        ("vit_tf/formats/npz/keys.py", ["vit_tf/formats/test_npz"]),
        ("vit_tf/__init__.py", ["vit_tf/test_import"]),
        # Importers, one of which has a test module that is named after it.
        ("vit_tf/images/crops.py", ["pipelines/test_crops", "vit_tf/test_preprocessing"]),
        # Importers: a test, a helper of the tests, one level up, by a string.
        ("vit_tf/layers/positions.py", ["vit_tf/layers/test_tokens"]),
        ("tests/pipelines/tiny.py", ["pipelines/test_commands"]),
        ("vit_tf/layers/grid.py", ["vit_tf/layers/test_tokens"]),
        ("vit_tf/analysis/vit_cost.py", ["vit_tf/test_families"]),
        # A command or another file by its name or its folder.
        ("pipelines/export.py", ["pipelines/test_commands"]),
        ("pyproject.toml", ["test_packaging"]),
        # Kernels do not change how the ops are installed; the list of sources does.
        ("custom_ops/cpu/tile.h", ["custom_ops/test_ops_attention"]),
        (
            "custom_ops/sources.bzl",
            ["custom_ops/test_install", "custom_ops/test_ops_attention"],
        ),
        ("tests/golden/vit_gap.npz", ["vit_tf/models/test_golden"]),
        # Nothing: no test contains its name, and no module imports it.
        (".ci/export", []),
        ("tests/golden_files.py", []),
    ],
)
def test_tests_for(path, tests):
    assert changed.tests_for(path, SOURCES) == [f"tests/{name}.py" for name in tests]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git checkout with the commit `main` and a branch with one commit on top."""
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (
        ("init", "-q", "-b", "main"),
        ("add", "a", "b", "c"),
        (*author, "commit", "-qm", "all"),
        ("switch", "-qc", "branch"),
        ("rm", "-q", "b"),
        (*author, "commit", "-qm", "without b"),
    ):
        assert changed._git(*arguments) is not None, arguments
    return tmp_path


def test_changed_files_are_committed_edited_and_new_ones(checkout):
    assert changed.changed_files(changed.merge_base()) == ["b"]
    (checkout / "a").write_text("edited")
    (checkout / "new").write_text("new")
    assert changed.changed_files(changed.merge_base()) == ["a", "b", "new"]
    assert changed.changed_files("HEAD") == ["a", "new"]
    assert changed.changed_files("nowhere") is None


@pytest.mark.usefixtures("checkout")
def test_no_change_and_no_commit_are_told(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["changed", "HEAD"])
    changed.main()
    output = capsys.readouterr()
    assert output.out.strip() == "" and "Nothing has changed since HEAD." in output.err
    monkeypatch.setattr("sys.argv", ["changed", "nowhere"])
    with pytest.raises(SystemExit, match="no commit 'nowhere'"):
        changed.main()
