"""A user's own images: SITE/CLASS/*.png, one client a site, or CLASS/*.png to be partitioned."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from data_prep.heldout import stratified_split
from data_prep.partitions import Indices
from data_prep.sources.base import Pixels, Source, Split, check
from data_prep.sources.decode import check_bits, decode, fit
from data_prep.sources.groups import groups_of
from data_prep.sources.layout import Item, scan
from data_prep.sources.sharding import Sharding
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import REQUIRED, nearest, setting
from fedproc_mpi.terminal import say


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
    group: str = setting(
        "", "images to keep on one side of the hold-out: an expression, 'patient(\\d+)', or TABLE.csv:COLUMN"
    )
    bits: int | None = setting(
        None,
        "bits that 16-bit images use, of which the upper 8 are kept; none: 16, refused if black",
        low=8,
        high=16,
    )
    skip_broken: bool = setting(False, "leave out files that cannot be read, with a count")

    def load(self) -> Source:
        """Images resized and cropped to a square; the test half from test_root, or `test_share` by seed."""
        if self.test_root and self.root.exists() and self.test_root.exists():
            root, test_root = self.root.resolve(), self.test_root.resolve()
            if root == test_root or root in test_root.parents or test_root in root.parents:
                raise UserError(
                    f"--test-root {self.test_root} and --root {self.root} hold the same images; they must be "
                    "two folders side by side"
                )
        items, passed_over = scan(self.root)
        test_items, more = scan(self.test_root) if self.test_root else ([], Counter[str]())
        class_names = sorted({item.label for item in items})
        site_names = sorted({item.site for item in items if item.site})
        for item in test_items:
            if item.label not in class_names:
                found = f"class {item.label} is not among those of {self.root}"
                raise UserError(f"{self.test_root}: {found}; {nearest(item.label, class_names)}")

        def half(pixels: Pixels, wanted: list[Item], rows: Indices, groups: Sequence[str] = ()) -> Split:
            labels = np.array([class_names.index(wanted[i].label) for i in rows], np.int64)
            known = {site: i for i, site in enumerate(site_names)}
            sites = np.array([known.get(wanted[i].site, -1) for i in rows], np.int64)
            own_groups = [groups[i] for i in rows] if groups else []
            return Split(
                labels, lambda chosen: pixels(rows[chosen]), sites if site_names else None, own_groups
            )

        pixels, items = self._decode(items)
        groups = self._groups(items, self.root)
        whole = half(pixels, items, np.arange(len(items)), groups)
        if self.test_root:
            test_pixels, test_items = self._decode(test_items)
            train, test = whole, half(test_pixels, test_items, np.arange(len(test_items)))
            both = set(groups) & set(self._groups(test_items, self.test_root))
            if both:
                raise UserError(f"--group: {min(both)} is in {self.root} and in {self.test_root}")
        else:
            rows = stratified_split(whole.labels, self.test_share, self.seed, whole.sites, groups)
            train, test = (half(pixels, items, chosen, groups) for chosen in rows)
        name, shape = self.name or self.root.resolve().name, (self.image_size, self.image_size, self.channels)
        source = Source(
            name, class_names, shape, train, test, site_names, None, passed_over + more, self.bits
        )
        labels_of = {site: {item.label for item in items if item.site == site} for site in site_names}
        if len(site_names) > 1 and len(class_names) == sum(map(len, labels_of.values())):
            say(
                f"data_prep: {self.root}: no class is at two sites: are these sites? Taken as sites: "
                f"{', '.join(site_names[:5])}; as classes: {', '.join(class_names[:5])}"
            )
        if (
            absent := sorted({item.label for item in items} - {item.label for item in test_items})
            if test_items
            else []
        ):
            say(f"data_prep: {self.test_root}: no test image of class {', '.join(absent[:5])}")
        if strangers := sorted({item.site for item in test_items} - set(site_names) - {""}):
            names = ", ".join(strangers[:5])
            say(f"data_prep: {self.test_root}: {names}: no site of {self.root}; in the global test alone")
        return check(source, str(self.root))

    def _groups(self, items: list[Item], root: Path) -> list[str]:
        if not self.group:
            return []
        groups = groups_of([item.path for item in items], root, self.group)
        found = len(set(groups))
        alone = ": each image is a group of its own" if found == len(groups) else ""
        say(f"data_prep: --group: {found} groups of {len(groups)} images{alone}")
        return groups

    def _decode(self, items: list[Item]) -> tuple[Pixels, list[Item]]:
        """The images of the items that can be read, and these items."""
        size, channels = self.image_size, self.channels
        files, shape = [item.path for item in items], (size, size, channels)
        peaks: dict[Path, int] = {}  # of the 16-bit images

        def load(path: Path) -> npt.NDArray[np.uint8]:
            return fit(path, size, channels, self.bits or 16, peaks)

        pixels, good = decode(files, shape, load, self.scratch, self.skip_broken)
        by_site: dict[str, list[int]] = {}
        for item in (items[i] for i in good):
            if item.path in peaks:
                where = f"site {item.site}" if item.site else str(self.root)
                by_site.setdefault(where, []).append(peaks[item.path])
        check_bits(by_site, self.bits)
        return pixels, [items[i] for i in good]
