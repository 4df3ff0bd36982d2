"""Base of the TFDS builders of this project, which write their files without a network."""

import contextlib
import io

import tensorflow_datasets as tfds


class OfflineBuilder:
    """Mixin for a `GeneratorBasedBuilder` that downloads nothing."""

    # Without this attribute, TFDS searches the package for checksums of downloads. It does so with
    # `importlib_resources`, a package that it does not require.
    url_infos = None

    @classmethod
    def make_config(cls, name):
        """Registers the configuration `name` with TFDS, for builders without a fixed list.

        Raises:
            DataError: if `name` is not a valid configuration.
        """

    def download_and_prepare(self, **kwargs):
        """Writes the files if they are missing; silent, offline, safe in parallel processes."""
        # TFDS prints to stdout and draws progress bars.
        tfds.disable_progress_bar()
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                super().download_and_prepare(**kwargs)
            except OSError:
                # TFDS writes to a temporary folder and renames it. If another process finished
                # first, the rename fails, and the equal files of that process are used.
                if not (self.data_path / "dataset_info.json").exists():
                    raise
                self.info.read_from_directory(self.data_dir)
