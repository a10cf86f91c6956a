"""Which images belong together, so that no patient is on both sides of the hold-out."""

import re
from collections.abc import Sequence
from pathlib import Path

from data_prep.tables import read_table
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import nearest

FILE_COLUMNS = ("file", "filename", "path", "image", "image_path")


def groups_of(paths: Sequence[Path], root: Path, rule: str) -> list[str]:
    """The group of each image, by `--group`: a regular expression, or TABLE.csv:COLUMN.

    An expression is searched in the path below `root`; its first (…), or all that it matches, is the group.
    A table names the files in a column `file` (or filename, path, image, image_path), by their path below
    `root` or by their name alone. Raises UserError where an image has no group.
    """
    file, _, column = rule.rpartition(":")
    names = [path.relative_to(root).as_posix() for path in paths]
    if file.lower().endswith(".csv"):
        table = _read_table(Path(file), column)
        found = [table.get(name, table.get(Path(name).name)) for name in names]
    else:
        found = _matches(names, rule)
    if rule.lower().endswith((".csv", ".tsv")) or Path(rule).is_file():
        raise UserError(
            f"--group {rule}: name the column as well: TABLE.csv:COLUMN (a table with commas or semicolons)"
        )
    missing = [name for name, group in zip(names, found, strict=True) if not group]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"--group {rule}: no group for {missing[0]}{more}; every image needs one")
    return [str(group) for group in found]


def _matches(names: Sequence[str], rule: str) -> list[str | None]:
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise UserError(f"--group {rule}: no regular expression: {error}") from error
    found = (pattern.search(name) for name in names)
    return [match and (match[1] if pattern.groups else match[0]) for match in found]


def _read_table(path: Path, column: str) -> dict[str, str]:
    """File → group."""
    header, lines = read_table(path, "--group")
    columns = [c for c in header if c] if lines else []
    if column not in columns:
        raise UserError(f"--group {path}:{column}: no such column; {nearest(column, columns)}")
    key = next((c for c in columns if c.lower() in FILE_COLUMNS), None)
    if key is None:
        raise UserError(f"--group {path}: no column names the files; call it {FILE_COLUMNS[0]}")
    table: dict[str, str] = {}
    for number, row in lines:
        name, group = (row[key] or "").strip(), (row[column] or "").strip()
        if table.setdefault(name, group) != group:
            raise UserError(f"--group {path}: line {number}: {name} is in two groups: {table[name]}, {group}")
    return table
