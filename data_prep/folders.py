"""A user's own images: SITE/CLASS/*.png, one client a site, or CLASS/*.png to be partitioned."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.decode import decode, fit, is_image
from data_prep.heldout import stratified_split
from data_prep.partition import Indices
from data_prep.pixels import PixelFile
from data_prep.sources import Source, Split, check
from fedproc_mpi.errors import UserError


@dataclass(frozen=True)
class Item:
    """One image file; site is '' where the folders have none."""

    path: Path
    site: str
    label: str


def folders(
    root: Path,
    test_root: Path | None,
    name: str,
    size: int,
    channels: int,
    test_share: float,
    seed: int,
    scratch: Path,
    skip_broken: bool,
) -> Source:
    """Images resized and cropped to size × size; the test half from test_root, or `test_share` by seed."""
    if size < 1:
        raise UserError(f"--image-size must be at least 1, not {size}")
    if test_root is None and not 0 < test_share < 1:
        raise UserError(f"--test-share must be between 0 and 1, not {test_share}")
    items = scan(root)
    test_items = scan(test_root) if test_root else []
    class_names = sorted({item.label for item in items})
    site_names = sorted({item.site for item in items if item.site})
    for item in test_items:
        if item.label not in class_names:
            raise UserError(f"{test_root}: class {item.label} is not among those of {root}")
    shape = (size, size, channels)

    def load(wanted: list[Item]) -> tuple[PixelFile, list[Item]]:
        files = [item.path for item in wanted]
        pixels, good = decode(files, shape, lambda p: fit(p, size, channels), scratch, skip_broken)
        return pixels, [wanted[i] for i in good]

    def half(pixels: PixelFile, wanted: list[Item], rows: Indices) -> Split:
        labels = np.array([class_names.index(wanted[i].label) for i in rows], np.int64)
        known = {site: i for i, site in enumerate(site_names)}
        sites = np.array([known.get(wanted[i].site, -1) for i in rows], np.int64)
        return Split(labels, lambda chosen: pixels(rows[chosen]), sites if site_names else None)

    pixels, items = load(items)
    every = np.arange(len(items))
    if test_root:
        test_pixels, test_items = load(test_items)
        train, test = half(pixels, items, every), half(test_pixels, test_items, np.arange(len(test_items)))
    else:
        whole = half(pixels, items, every)
        train_rows, test_rows = stratified_split(whole.labels, test_share, seed, whole.sites)
        train, test = half(pixels, items, train_rows), half(pixels, items, test_rows)
    return check(Source(name, class_names, shape, train, test, site_names), str(root))


def scan(root: Path) -> list[Item]:
    """The image files in order of site, class and name. UserError where the folders have another shape."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder")
    first = _folders(root)
    if not first:
        raise UserError(f"{root}: no folders there; it must hold CLASS/images or SITE/CLASS/images")
    flat = [f for f in first if any(map(is_image, f.iterdir()))]
    deep = [f for f in first if f not in flat and _folders(f)]
    if flat and deep:
        raise UserError(
            f"{root}: {flat[0].name} holds images, {deep[0].name} holds folders; it must be CLASS/images or "
            "SITE/CLASS/images throughout"
        )
    items = []
    for site, label in [(f.name, c) for f in deep for c in _folders(f)] if deep else [("", c) for c in first]:
        files = sorted(filter(is_image, label.iterdir()), key=lambda p: p.name)
        if not files:
            raise UserError(f"{label}: no images in this class folder; fill it or remove it")
        items += [Item(path, site, label.name) for path in files]
    if deep and (empty := [f for f in first if f not in deep]):
        raise UserError(f"{empty[0]}: no class folders in this site; fill it or remove it")
    return items


def _folders(root: Path) -> list[Path]:
    return sorted(
        (p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")), key=lambda p: p.name
    )
