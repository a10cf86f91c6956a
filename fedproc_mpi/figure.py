"""Pictures for files: no window, no pyplot, whatever backend the surroundings ask for."""

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedproc_mpi.errors import UserError, reason


def new_figure(**options: Any) -> Any:
    """A matplotlib Figure, to be saved as a file; options are the Figure's.

    A notebook's MPLBACKEND names a backend that other environments lack, and matplotlib's import fails over
    it. The backend of a program that has imported matplotlib before is left alone.
    """
    asked = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
    try:
        from matplotlib.figure import Figure
    finally:
        if asked is not None:
            os.environ["MPLBACKEND"] = asked
    return Figure(**options)


def save_figure(figure: Any, out: Path, dpi: int = 120) -> Path:
    """Write a picture of the kind that the ending says; returns its path. UserError where that fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a name in letters that the font lacks
            figure.savefig(out, dpi=dpi)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write {out}: {reason(error)}") from error
    return out


def shortened(names: Sequence[str], longest: int) -> list[str]:
    """Names of at most `longest` characters that can still be told apart, as `plain` text.

    Where any is longer, the words that all begin with give way to …; then the middle of a name does, since
    names of one kind differ at their ends; where two would be the same, they get their number in front.
    """
    found = list(names)
    if max(map(len, found), default=0) > longest:
        first, last = min(found), max(found)  # in between all begin as both do
        same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        start = first[: first.rfind(" ", 0, same) + 1]
        if len(start) > 3 and len(found) > 1:
            found = [f"…{name[len(start) :]}" for name in found]
        found = [_without_middle(name, longest) for name in found]
        if len(set(found)) < len(set(names)):
            found = [f"{i} {_without_middle(name, longest - 4)}" for i, name in enumerate(found)]
    return list(map(plain, found))


def _without_middle(name: str, longest: int) -> str:
    if len(name) <= longest:
        return name
    tail = 2 * longest // 3
    return f"{name[: longest - tail - 1]}…{name[-tail:]}"


def plain(text: str) -> str:
    """Text to write into a picture as it is: dollar signs would start mathematics in matplotlib."""
    return text.replace("$", r"\$")
