"""Pictures for files: no window, no pyplot, whatever backend the surroundings ask for."""

import os
import sys
from typing import Any


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


def plain(text: str) -> str:
    """Text to write into a picture as it is: dollar signs would start mathematics in matplotlib."""
    return text.replace("$", r"\$")
