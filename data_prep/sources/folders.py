"""A user's own images: SITE/CLASS/*.png, one client a site, or CLASS/*.png to be partitioned."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from data_prep.heldout import stratified_split
from data_prep.partitions import Indices
from data_prep.sources.base import Pixels, Source, Split, check
from data_prep.sources.decode import decode, fit, is_image
from data_prep.sources.sharding import Sharding
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import REQUIRED, setting


@dataclass(frozen=True)
class Item:
    """One image file; site is '' where the folders have none."""

    path: Path
    site: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Folders(Sharding):
    """Your own images: ROOT/SITE/CLASS/*.png (one client a site) or ROOT/CLASS/*.png."""

    root: Path = setting(REQUIRED, "the folder of site folders, or of class folders")
    test_root: Path | None = setting(
        None, "a folder of the same layout with the test images; without it --test-share is held out"
    )
    test_share: float = setting(0.2, "share of each class held out for test, by the seed", above=0, high=1)
    image_size: int = setting(
        64, "the shorter side is resized to this (bilinear, antialiased); the middle square is kept", low=1
    )
    channels: Literal[1, 3] = setting(3, "3: RGB, 1: grey")
    name: str = setting("", "name of the data set (default: the folder's)")
    skip_broken: bool = setting(False, "leave out files that cannot be read, with a count")

    def load(self) -> Source:
        """Images resized and cropped to a square; the test half from test_root, or `test_share` by seed."""
        items = scan(self.root)
        test_items = scan(self.test_root) if self.test_root else []
        class_names = sorted({item.label for item in items})
        site_names = sorted({item.site for item in items if item.site})
        for item in test_items:
            if item.label not in class_names:
                raise UserError(f"{self.test_root}: class {item.label} is not among those of {self.root}")

        def half(pixels: Pixels, wanted: list[Item], rows: Indices) -> Split:
            labels = np.array([class_names.index(wanted[i].label) for i in rows], np.int64)
            known = {site: i for i, site in enumerate(site_names)}
            sites = np.array([known.get(wanted[i].site, -1) for i in rows], np.int64)
            return Split(labels, lambda chosen: pixels(rows[chosen]), sites if site_names else None)

        pixels, items = self._decode(items)
        whole = half(pixels, items, np.arange(len(items)))
        if self.test_root:
            test_pixels, test_items = self._decode(test_items)
            train, test = whole, half(test_pixels, test_items, np.arange(len(test_items)))
        else:
            rows = stratified_split(whole.labels, self.test_share, self.seed, whole.sites)
            train, test = (half(pixels, items, chosen) for chosen in rows)
        name, shape = self.name or self.root.resolve().name, (self.image_size, self.image_size, self.channels)
        return check(Source(name, class_names, shape, train, test, site_names), str(self.root))

    def _decode(self, items: list[Item]) -> tuple[Pixels, list[Item]]:
        """The images of the items that can be read, and these items."""
        size, channels = self.image_size, self.channels
        files, shape = [item.path for item in items], (size, size, channels)
        pixels, good = decode(files, shape, lambda p: fit(p, size, channels), self.scratch, self.skip_broken)
        return pixels, [items[i] for i in good]


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
    found = (p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    return sorted(found, key=lambda p: p.name)
