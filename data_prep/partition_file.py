"""A partition of the user's own: which client holds which rows of the training half, from JSON or CSV."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.partitions import Indices
from data_prep.tables import read_table
from fedproc_mpi.errors import UserError, reason
from fedproc_mpi.terminal import say

COLUMNS = ("row", "client")
Told = tuple[str, Any, str]  # client, row, and where in the file that stands


def read_partition(path: Path, num_rows: int) -> tuple[tuple[str, ...], list[Indices]]:
    """(the clients' names, each client's rows in ascending order) of a partition file.

    num_rows: samples of the training half; rows count from 0. Clients whose names are numbers come in the
    order of the numbers, others as the file first names them. Names are () where they are 0, 1, 2, …
    Raises UserError, with file, client and row, where a row is none of the training half or is given twice,
    and where a client has none. Rows that no client has are told.
    """
    if path.suffix.lower() == ".json":
        clients, told = _from_json(path)
    elif path.suffix.lower() == ".csv":
        clients, told = _from_csv(path)
    else:
        raise UserError(f"--partition-file {path}: a .json or a .csv is read; name it so")
    if odd := [client for client in clients if not client.strip() or not client.isprintable()]:
        raise UserError(f"--partition-file {path}: client {odd[0]!r}: a name is one line that can be read")
    rows_of: dict[str, list[int]] = {client: [] for client in clients}
    owner_of: dict[int, str] = {}
    for client, row, where in told:
        at = f"--partition-file {path}: {where}client {client}, row {str(row)[:60]}"
        if type(row) is not int:  # true is an int to Python
            raise UserError(f"{at}: a row is a whole number, from 0")
        if not 0 <= row < num_rows:
            raise UserError(f"{at}: the training half has rows 0 to {num_rows - 1}; rows count from 0 in it")
        if row in owner_of:
            whose = "it" if owner_of[row] == client else f"client {owner_of[row]}"
            raise UserError(f"{at}: {whose} has this row already; a row belongs to one client, once")
        owner_of[row] = client
        rows_of[client].append(row)
    if not rows_of:
        raise UserError(f"--partition-file {path}: no client in it")
    if without := [client for client, rows in rows_of.items() if not rows]:
        raise UserError(
            f"--partition-file {path}: client {without[0]} has no rows; give it some, or remove it"
        )
    if left_out := num_rows - len(owner_of):
        first = next(row for row in range(num_rows) if row not in owner_of)
        say(f"data_prep: {path}: {left_out} of {num_rows} training samples (first: row {first}) left out")
    names = list(rows_of)
    if all(name.isascii() and name.isdigit() for name in names):
        names.sort(key=lambda name: (len(name.lstrip("0")), name.lstrip("0"), name))
    numbered = names == [str(i) for i in range(len(names))]
    return () if numbered else tuple(names), [np.sort(np.array(rows_of[n], np.int64)) for n in names]


def _from_json(path: Path) -> tuple[list[str], Iterable[Told]]:
    """Of {client: [rows]} or a list of lists."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
            raise UserError(f"--partition-file {path}: client {twice} stands there twice; join its rows")
        return found

    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=once)
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"--partition-file {path}: cannot be read as JSON: {reason(error)}") from error
    if isinstance(found, list):
        found = {str(i): rows for i, rows in enumerate(found)}
    if not isinstance(found, dict):
        raise UserError(f'--partition-file {path}: it must hold {{"client": [rows]}}, or a list of lists')
    for client, rows in found.items():
        if not isinstance(rows, list):
            raise UserError(f"--partition-file {path}: client {client}: its rows must be a list of numbers")
    return list(found), ((client, row, "") for client, rows in found.items() for row in rows)


def _from_csv(path: Path) -> tuple[list[str], Iterable[Told]]:
    """Of a table with the columns row and client."""
    header, lines = read_table(path, "--partition-file")
    if missing := [column for column in COLUMNS if column not in header]:
        raise UserError(f"--partition-file {path}: no column {missing[0]}; it needs {' and '.join(COLUMNS)}")
    told: list[Told] = []
    for number, line in lines:
        text, client = ((line[column] or "").strip() for column in COLUMNS)
        if not client:
            raise UserError(f"--partition-file {path}: line {number}, row {text}: no client; name one")
        digits = text.removeprefix("-")
        row = int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else text
        told.append((client, row, f"line {number}: "))
    return list(dict.fromkeys(client for client, _, _ in told)), told
