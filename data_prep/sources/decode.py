"""Image files → uint8 pixels, in parallel threads (Pillow decodes outside the interpreter's lock)."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track

from data_prep.sources.base import Pixels
from data_prep.sources.pixels import on_disk
from fedproc_mpi.errors import UserError, reason
from fedproc_mpi.terminal import say

WINDOW = 4096  # files handed to the threads at once
EXTENSIONS = {
    *(".png", ".jpg", ".jpeg", ".jfif", ".jpe", ".bmp"),
    *(".tif", ".tiff", ".webp", ".gif", ".pgm", ".ppm"),
}
ALMOST_BLACK = 13  # bits: 16-bit images that use no more have an eighth of the brightness at most
WHITE_IS_ZERO = 262  # TIFF's tag of how values are meant; Pillow heeds it in 8-bit images alone
Loader = Callable[[Path], npt.NDArray[np.uint8]]  # a file → (H, W, C)


def is_image(path: Path) -> bool:
    """By name; hidden files (`.DS_Store`, `._a.png`) are none. A dangling link is one that cannot be read."""
    named = path.suffix.lower() in EXTENSIONS and not path.name.startswith(".")
    return named and (path.is_file() or path.is_symlink())


def decode(
    files: Sequence[Path], shape: tuple[int, int, int], load: Loader, scratch: Path, skip_broken: bool
) -> tuple[Pixels, list[int]]:
    """The images of the files that can be read, by index, and those files' positions.

    Raises UserError that names the broken ones, unless skip_broken.
    """
    x_NHWC = on_disk(scratch, len(files), shape)

    def attempt(i: int) -> str:
        try:
            x_NHWC[i] = load(files[i])
        except Exception as error:  # Pillow's plugins raise anything on broken files
            return f"{files[i]} ({reason(error)})"
        return ""

    complaints: list[str] = []
    starts = range(0, len(files), WINDOW)
    jobs = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    console = Console(stderr=True)
    with ThreadPoolExecutor(jobs) as pool:
        for start in track(starts, "decoding images", console=console, disable=not console.is_terminal):
            complaints += pool.map(attempt, range(start, min(start + WINDOW, len(files))))
    broken = [complaint for complaint in complaints if complaint]
    if broken:
        told = "; ".join(broken[:5]) + (f"; and {len(broken) - 5} more" if len(broken) > 5 else "")
        if not skip_broken:
            remedy = "repair or remove them, or add --skip-broken"
            raise UserError(f"{len(broken)} of {len(files)} images cannot be read: {told}; {remedy}")
        say(f"skipped {len(broken)} of {len(files)} images: {told}")
    good = [i for i, complaint in enumerate(complaints) if not complaint]
    positions = np.array(good, np.int64)
    return lambda rows: x_NHWC[positions[rows]], good


def fit(
    path: Path, size: int, channels: int, bits: int = 16, peaks: dict[Path, int] | None = None
) -> npt.NDArray[np.uint8]:
    """A picture of any size and kind as (size, size, channels).

    Turned as its EXIF tag says; the shorter side is resized to `size` (bilinear, antialiased) and the
    middle square cut out. 16-bit grey keeps the upper 8 of its `bits`, and its largest value goes into
    `peaks`; alpha is dropped.
    """
    from PIL import Image, ImageOps

    with Image.open(path) as opened:
        image = ImageOps.exif_transpose(opened)
        if image.mode == "F":
            raise ValueError("floating-point pixels; save it as 8 or 16 bits")
        if image.mode.startswith("I"):
            deep = np.asarray(image).astype(np.int64)
            if deep.min() < 0 or deep.max() >= 2**16:
                raise ValueError(f"values from {deep.min()} to {deep.max()}; save it as 8 or 16 bits from 0")
            if peaks is not None:
                peaks[path] = int(deep.max())
            if getattr(opened, "tag_v2", {}).get(WHITE_IS_ZERO) == 0:
                deep = (2**bits - 1 - deep).clip(0)
            image = Image.fromarray((deep >> (bits - 8)).clip(0, 255).astype(np.uint8))
        image = image.convert("L" if channels == 1 else "RGB")
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=None)
        return np.asarray(image, np.uint8).reshape(size, size, channels)


def check_bits(peaks: Mapping[str, Sequence[int]], bits: int | None) -> None:
    """Raise UserError where 16-bit images would come out black, or do not fit into --bits.

    peaks: the largest values of the 16-bit images, by where they are. bits: what --bits says, if anything.
    """
    for where, values in sorted(peaks.items()):
        most = max(values)
        if bits and most.bit_length() > bits:
            raise UserError(
                f"{where}: a 16-bit image has the value {most}, which is more than --bits {bits}; "
                "images of several depths in one set: save them as 8 bits first"
            )
        peak = sorted(values)[len(values) * 9 // 10]  # a single overexposed pixel says nothing of the others
        used = peak.bit_length()
        if not bits and used <= ALMOST_BLACK:
            raise UserError(
                f"{where}: its 16-bit images hardly go above {peak} and would be all but black; "
                f"--bits {max(8, used + used % 2)} uses these bits, --bits 16 takes them as they are"
            )


def rgb(path: Path, size: int) -> npt.NDArray[np.uint8]:
    """A picture that must be size × size already, as RGB (grey and CMYK ones too)."""
    from PIL import Image

    with Image.open(path) as image:
        if image.size != (size, size):
            raise ValueError(f"{image.size[0]}×{image.size[1]} px, not {size}×{size}")
        return np.asarray(image.convert("RGB"), np.uint8)
