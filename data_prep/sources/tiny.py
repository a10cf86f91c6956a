"""Tiny-ImageNet from its official folder, whole or with some of its classes."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.sources.base import Source, Split, check
from data_prep.sources.decode import decode, is_image, rgb
from data_prep.sources.sharding import Sharding
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import setting

SIZE, CLASSES = 64, 200


@dataclass(frozen=True, kw_only=True)
class TinyImageNet(Sharding):
    """Tiny-ImageNet from its official folder, or a part of it."""

    root: Path = setting(Path("data/tiny-imagenet-200"), "the folder with train/ and val/")
    wnids: tuple[str, ...] = setting((), "only these classes")
    skip_broken: bool = setting(False, "leave out files that cannot be read, with a count")

    def load(self) -> Source:
        """Classes are the sorted WNIDs under train/; the test set is val/ (the real one has no labels).

        The full set is checked to have 500 and 50 images of each class.
        """
        root = self.root
        if (root / "tiny-imagenet-200").is_dir():
            root = root / "tiny-imagenet-200"
        annotations = root / "val" / "val_annotations.txt"
        if not (root / "train").is_dir() or not annotations.is_file():
            raise UserError(
                f"--root {root}: no Tiny-ImageNet there: looked for train/ and val/val_annotations.txt; "
                "unpack tiny-imagenet-200.zip (cs231n.stanford.edu/tiny-imagenet-200.zip) and give its folder"
            )
        found = sorted(p.name for p in (root / "train").iterdir() if p.is_dir())
        if unknown := sorted(set(self.wnids) - set(found)):
            raise UserError(f"--wnids {unknown[0]}: {root / 'train'} has no such class")
        classes = sorted(self.wnids) if self.wnids else found
        index = {wnid: k for k, wnid in enumerate(classes)}
        train = [
            (path, index[wnid])
            for wnid in classes
            for path in sorted(filter(is_image, (root / "train" / wnid / "images").glob("*")))
        ]
        test = [(root / "val" / "images" / name, index[w]) for name, w in _read(annotations) if w in index]
        absent = [path for path, _ in test if not path.is_file()]
        if absent:
            raise UserError(f"{absent[0]}: named in {annotations.name}, but not there ({len(absent)} such)")
        for half, items, full in (("train", train, 500), ("val", test, 50)):
            counts = Counter(k for _, k in items)
            for k, wnid in enumerate(classes):
                if not counts[k] or (len(found) == CLASSES and counts[k] != full):
                    wanted = full if len(found) == CLASSES else "at least 1"
                    raise UserError(f"{root / half}: class {wnid} has {counts[k]} images, not {wanted}")
        halves = []
        for items in (train, test):
            paths, labels = [path for path, _ in items], np.array([k for _, k in items], np.int64)
            pixels, good = decode(
                paths, (SIZE, SIZE, 3), lambda p: rgb(p, SIZE), self.scratch, self.skip_broken
            )
            halves.append(Split(labels[good], pixels))
        names = _class_names(root / "words.txt", classes)
        return check(
            Source("tinyimagenet", names, (SIZE, SIZE, 3), halves[0], halves[1], normalise=(0.5, 0.5)),
            str(root),
        )


def _read(annotations: Path) -> list[tuple[str, str]]:
    """(file name, WNID) of each validation image, in the file's order."""
    lines = [
        line.split("\t") for line in annotations.read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    if short := [line for line in lines if len(line) < 2]:
        raise UserError(f"{annotations}: cannot read the line {short[0][0]!r} (file, tab, WNID, box)")
    return [(line[0], line[1]) for line in lines]


def _class_names(words: Path, classes: list[str]) -> list[str]:
    """The first word of each WNID in words.txt; the WNID itself where that is missing or not unique."""
    lines = words.read_text(encoding="utf-8").splitlines() if words.is_file() else []
    names = {w: text.split(",")[0] for w, _, text in (line.partition("\t") for line in lines)}
    count = Counter(names.get(w, w) for w in classes)
    return [names.get(w, w) if count[names.get(w, w)] == 1 else w for w in classes]
