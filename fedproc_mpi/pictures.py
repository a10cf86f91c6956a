"""Image files as the shards would hold them, by data_prep's own functions."""

import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import nearest
from fedproc_mpi.plugins import use_data_prep
from fedproc_mpi.report.predictions import Pictures

BITS = "bits that 16-bit images use; none: as the run's images were read"


def find_files(named: Sequence[Path]) -> list[Path]:
    """The image files of what was named, those of folders in order. UserError where there are none."""
    use_data_prep()
    from data_prep.sources.decode import EXTENSIONS, is_image

    files: list[Path] = []
    for path in named:
        inside = sorted(filter(is_image, _walk(path))) if path.is_dir() else [path]
        if not inside:
            raise UserError(f"{path}: no image in this folder (known: {', '.join(sorted(EXTENSIONS))})")
        if not path.exists():
            raise UserError(f"{path}: no such file")
        files += inside
    return files


def decode_files(
    files: Sequence[Path], record: dict[str, Any], bits: int | None, skip_broken: bool
) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """The images (N, H, W, C) that a run's model takes, and the positions of the files that could be read.

    record: the run's config.json. bits: None as the run's images were read. Raises UserError for a model of
    other than squares, for files that cannot be read, unless skip_broken, and for 16-bit images that the
    shards would have refused.
    """
    use_data_prep()
    from data_prep.sources.decode import check_bits, decode, fit

    height, width, channels = record["data"]["image_shape"]
    if height != width:
        raise UserError(
            f"this model takes {height}×{width} px, and files are cut to squares; resize them yourself, and "
            "load_model(run).predict(images) in Python takes them"
        )
    bits = bits or record["data"].get("bits")
    peaks: dict[Path, int] = {}
    load = partial(fit, size=height, channels=channels, bits=bits or 16, peaks=peaks)
    scratch = Path(tempfile.gettempdir())
    pixels, good = decode(files, (height, width, channels), load, scratch, skip_broken)
    by_folder: dict[str, list[int]] = {}
    for path, peak in peaks.items():
        by_folder.setdefault(str(path.parent), []).append(peak)
    check_bits(by_folder, bits)
    return pixels(np.arange(len(good))), good


def read_labelled(root: Path, record: dict[str, Any], bits: int | None, skip_broken: bool) -> Pictures:
    """ROOT/SITE/CLASS/images or ROOT/CLASS/images, read as `data_prep folders` reads them.

    Raises UserError as it does, and for a class that the run does not know.
    """
    use_data_prep()
    from data_prep.sources.layout import scan

    items, _ = scan(root)
    names = list(record["data"]["class_names"])
    for item in items:
        if item.label not in names:
            raise UserError(
                f"{item.path.parent}: {item.label} is no class of the run; {nearest(item.label, names)}"
            )
    x_NHWC, good = decode_files([item.path for item in items], record, bits, skip_broken)
    items = [items[i] for i in good]
    if not items:
        raise UserError(f"{root}: none of the images can be read")
    sites = dict.fromkeys(item.site for item in items if item.site)
    rows = {
        site: np.array([i for i, item in enumerate(items) if item.site == site], np.int64) for site in sites
    }
    return Pictures(x_NHWC, np.array([names.index(item.label) for item in items], np.int64), rows)


def _walk(folder: Path) -> list[Path]:
    """All files below a folder. OSError where a folder in it cannot be read."""

    def fail(error: OSError) -> None:
        raise error

    return [Path(where, name) for where, _, names in os.walk(folder, onerror=fail) for name in names]
