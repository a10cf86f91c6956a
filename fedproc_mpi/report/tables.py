"""Tables for people and programs: the same cells as aligned text, as Markdown and as CSV."""

import csv
import io
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

HEAD = 24  # characters in a line of the header, as text
NONE = "–"  # a cell without a value


@dataclass(frozen=True)
class Table:
    """A header and rows of as many cells.

    align: a letter per column, l (left) or r (right). bold: (row, column) of cells to stand out, from 0.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str
    bold: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        """Raises ValueError where a row or `align` has another length than the header."""
        if any(len(row) != len(self.header) for row in (*self.rows, self.align)):
            raise ValueError(f"not all rows and {self.align!r} are as long as {self.header}")

    def text(self) -> str:
        """Aligned columns for a terminal, a rule under the header; bold cells stand between stars.

        A long name in the header takes several lines.
        """
        heads = [textwrap.wrap(name, HEAD, break_on_hyphens=False) for name in self.header]
        height = max(map(len, heads))
        # The last lines of the names stand next to each other, above the rule.
        top = [list(line) for line in zip(*([""] * (height - len(h)) + h for h in heads), strict=True)]
        body = self._marked("*", str)
        widths = [max(map(len, column)) for column in zip(*top, *body, strict=True)]
        lines = [*top, ["-" * width for width in widths], *body]
        return "\n".join(self._aligned(line, widths) for line in lines)

    def markdown(self) -> str:
        """A Markdown table; characters with a meaning there are escaped."""
        rule = [{"l": "---", "r": "--:"}[letter] for letter in self.align]
        lines = [list(map(escape, self.header)), rule, *self._marked("**", escape)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def csv(self) -> str:
        """Comma-separated, a header and a line per row; bold is left out."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        return text.getvalue()

    def _marked(self, mark: str, write: Callable[[str], str]) -> list[list[str]]:
        """The rows' cells as `write` gives them, the bold ones between marks."""
        return [
            [
                f"{mark}{write(cell)}{mark}" if (i, j) in self.bold else write(cell)
                for j, cell in enumerate(row)
            ]
            for i, row in enumerate(self.rows)
        ]

    def _aligned(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        pad = {"l": str.ljust, "r": str.rjust}
        padded = (
            pad[letter](cell, width) for letter, cell, width in zip(self.align, cells, widths, strict=True)
        )
        return "  ".join(padded).rstrip()


@dataclass(frozen=True)
class Section:
    """A title, what stands under it, and the name of a picture's file for Markdown ('': none)."""

    title: str
    table: Table | None = None
    sentences: Sequence[str] = ()
    picture: str = ""

    def text(self) -> str:
        """For a terminal; the picture is left out."""
        return "\n".join([self.title, *([self.table.text()] if self.table else []), *self.sentences])

    def markdown(self) -> str:
        """The title as a heading, the sentences as a list."""
        parts = [f"## {escape(self.title)}"]
        if self.table:
            parts.append(self.table.markdown())
        if self.sentences:
            parts.append("\n".join(f"- {escape(sentence)}" for sentence in self.sentences))
        if self.picture:
            parts.append(f"![{escape(self.title)}]({self.picture})")
        return "\n\n".join(parts)


def escape(text: str) -> str:
    """Plain text for Markdown: nothing in it is markup, and it stays in one line."""
    return re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", " ".join(text.split()))
