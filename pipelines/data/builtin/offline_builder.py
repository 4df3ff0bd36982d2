"""What the TFDS builders of this project share: they write their files on their own, offline."""

import contextlib
import io

import tensorflow_datasets as tfds


class OfflineBuilder:
    """Mixed into a `GeneratorBasedBuilder` that downloads nothing."""

    # Left alone, TFDS searches the package for checksums of downloads, with `importlib_resources`,
    # which it uses without requiring it.
    url_infos = None

    @classmethod
    def make_config(cls, name):
        """Makes the configuration of this name known to TFDS, where names are not a fixed list.

        Raises:
            DataError: if it can be none.
        """

    def download_and_prepare(self, **kwargs):
        """Writes the files unless they are there; silent, offline, safe in parallel processes."""
        # TFDS prints to stdout and draws progress bars.
        tfds.disable_progress_bar()
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                super().download_and_prepare(**kwargs)
            except OSError:
                # TFDS writes to a temporary folder and renames it. When another process was
                # faster, the rename fails and its equal files are in place.
                if not (self.data_path / "dataset_info.json").exists():
                    raise
                self.info.read_from_directory(self.data_dir)
