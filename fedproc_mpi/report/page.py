"""Sections as one HTML page with its pictures inside: a file to send."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from fedproc_mpi.report.tables import Section, Table

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #bbb; text-align: left; vertical-align: bottom; }
td.r, th.r { text-align: right; font-variant-numeric: tabular-nums; }
img { max-width: 100%; height: auto; }
li { margin: .2rem 0; }
"""


def page(title: str, sections: Sequence[Section], folder: Path) -> str:
    """The whole page. folder: where the sections' pictures lie. OSError where one cannot be read."""
    parts = [_section(section, folder) for section in sections]
    head = f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *parts])
    return f"{head}\n<style>{STYLE}</style>\n{body}\n</html>\n"


def _section(section: Section, folder: Path) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    if section.table is not None:
        parts.append(_table(section.table))
    if section.sentences:
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in section.sentences)
        parts.append(f"<ul>{items}</ul>")
    if section.picture:
        data = base64.b64encode((folder / section.picture).read_bytes()).decode()
        parts.append(f'<img alt="{html.escape(section.title)}" src="data:image/png;base64,{data}">')
    return "\n".join(parts)


def _table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str, number: int | None) -> str:
        found = []
        for column, (cell, align) in enumerate(zip(cells, table.align, strict=True)):
            text = html.escape(cell)
            text = f"<b>{text}</b>" if (number, column) in table.bold else text
            found.append(f"<{tag} class={align}>{text}</{tag}>")
        return f"<tr>{''.join(found)}</tr>"

    lines = [row(table.header, "th", None), *(row(cells, "td", i) for i, cells in enumerate(table.rows))]
    return f"<table>{''.join(lines)}</table>"
