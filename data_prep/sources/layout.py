"""The layout of a user's own folders: SITE/CLASS/images or CLASS/images, and what in them is no image."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.sources.decode import is_image
from fedproc_mpi.errors import UserError

SPLIT_WORDS = {
    "train",
    "training",
    "tr",
    "val",
    "valid",
    "validation",
    "test",
    "testing",
    "ts",
    "fold",
    "dev",
}


@dataclass(frozen=True)
class Item:
    """One image file; site is '' where the folders have none. Names are in Unicode's composed form (NFC)."""

    path: Path
    site: str
    label: str


def scan(root: Path) -> tuple[list[Item], Counter[str]]:
    """The image files in order of site, class and name; and by kind, how many other things lie there.

    Raises UserError where the folders have another shape, are the halves of one set, or give one class two
    names. Hidden files count for nothing.
    """
    if not root.is_dir():
        raise UserError(f"{root}: no such folder")
    first, others = _sorted(root)
    if not first:
        raise UserError(f"{root}: no folders there; it must hold CLASS/images or SITE/CLASS/images")
    _refuse_halves(root, first)
    flat = [f for f in first if any(map(is_image, _sorted(f)[1]))]
    deep = [f for f in first if f not in flat and _sorted(f)[0]]
    if flat and deep:
        raise UserError(
            f"{root}: {flat[0].name} holds images, {deep[0].name} holds folders; it must be CLASS/images or "
            "SITE/CLASS/images throughout"
        )
    if deep and (empty := [f for f in first if f not in deep]):
        raise UserError(f"{empty[0]}: no class folders in this site; fill it or remove it")
    passed_over = _kinds(others, "outside the class folders")
    classes = [("", label) for label in first] if not deep else []
    for site in deep:
        labels, others = _sorted(site)
        _refuse_halves(site, labels)
        passed_over += _kinds(others, "outside the class folders")
        classes += [(composed(site.name), label) for label in labels]
    items: list[Item] = []
    for name, label in classes:
        folders, files = _sorted(label)
        images = [path for path in files if is_image(path)]
        rest = _kinds([*folders, *(path for path in files if not is_image(path))])
        if not images:
            held = f"it holds {counted(rest)}; save them as PNG" if rest else "fill it or remove it"
            if folders:
                held = f"it holds folders ({folders[0].name}); it must be SITE/CLASS/images or CLASS/images"
            raise UserError(f"{label}: no images in this class folder; {held}")
        passed_over += rest
        items += [Item(path, name, composed(label.name)) for path in images]
    _refuse_twins(items)
    return items, passed_over


def composed(name: str) -> str:
    """A name in Unicode's form NFC (macOS writes é as two characters, others as one), no space around it."""
    return unicodedata.normalize("NFC", name).strip()


def counted(kinds: Counter[str]) -> str:
    """`10 .dcm, 2 folders`."""
    return ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))


def _sorted(folder: Path) -> tuple[list[Path], list[Path]]:
    """(folders, other entries) by name, hidden ones left out."""
    found = sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=lambda p: p.name)
    return [p for p in found if p.is_dir()], [p for p in found if not p.is_dir()]


def _kinds(paths: Iterable[Path], where: str = "") -> Counter[str]:
    """What is passed over, by kind."""

    def kind(path: Path) -> str:
        if path.is_dir():
            return "folder inside a class"
        name = "".join(path.suffixes[-2:]) if path.name.endswith(".gz") else path.suffix
        return f"{name.lower() or 'file without suffix'}{f' {where}' if where and is_image(path) else ''}"

    return Counter(map(kind, paths))


def _is_half(name: str) -> bool:
    """`Test`, `train_set`, `images_ts`, `fold1`: a word of the list between what are no letters."""
    words = re.split(r"[^a-z]+", name.casefold())
    return any(
        word.removesuffix("set").removesuffix("s") in SPLIT_WORDS or word in SPLIT_WORDS for word in words
    )


def _refuse_halves(root: Path, folders: Sequence[Path]) -> None:
    """Raise UserError where the folders are train, val, test and the like: no sites and no classes."""
    words = [f.name for f in folders if _is_half(f.name)]
    if len(words) < 2:
        return
    test = next((w for w in words if "test" in w.casefold()), words[-1])
    train = next((w for w in words if "tr" in w.casefold()), words[0])
    raise UserError(
        f"{root}: {', '.join(words)} are the halves of one set, neither sites nor classes; "
        f"--root {root / train} --test-root {root / test} takes them so (inside sites: move the halves up)"
    )


def _refuse_twins(items: Sequence[Item]) -> None:
    """Raise UserError where two classes differ by upper and lower case alone."""
    seen: dict[str, str] = {}
    for label in sorted({item.label for item in items}):
        twin = seen.setdefault(label.casefold(), label)
        if twin != label:
            sites = {name: next(i.path.parent for i in items if i.label == name) for name in (twin, label)}
            raise UserError(
                f"classes {twin} and {label} differ by upper and lower case alone ({sites[twin]}, "
                f"{sites[label]}); give them one name, or two that differ"
            )
