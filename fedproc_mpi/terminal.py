"""What commands print: readable on a terminal of any encoding, harmless when the reader has gone."""

import os
import sys
from contextlib import suppress
from typing import TextIO


def say(text: str, to: TextIO | None = None) -> None:
    """Print a line to standard output (or to `to`), at once. It never ends what is being done.

    Characters that the terminal cannot show become question marks. Where the reader of a pipe has gone, or
    the disk of a log file is full, this text and all later ones are dropped.
    """
    stream = sys.stdout if to is None else to
    try:
        try:
            print(text, file=stream, flush=True)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)
    except OSError:
        # What is still in the stream's buffer would fail again when Python flushes it at exit.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def complain(text: str) -> None:
    """`say` to standard error."""
    say(text, sys.stderr)


def open_closed_streams() -> None:
    """Give a command that was started with `2>&-` or the like an empty stream in its place.

    Else the next file that is opened gets the number of standard error, and messages would go into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            while os.open(os.devnull, os.O_RDWR) < number:
                pass
            setattr(sys, name, open(number, "r" if number == 0 else "w"))  # noqa: SIM115
