"""A CSV file as a spreadsheet writes it."""

import csv
from pathlib import Path

from fedproc_mpi.errors import UserError

Line = tuple[int, dict[str, str | None]]  # its number in the file, and its cells by column


def read_table(path: Path, flag: str) -> tuple[list[str], list[Line]]:
    """(the columns, the lines) of a table with commas or semicolons. flag: whose it is, for the messages.

    Raises UserError where it cannot be read, or two columns have one name.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            # A spreadsheet in a language with decimal commas writes semicolons.
            reader = csv.DictReader(file, delimiter=";" if ";" in first and "," not in first else ",")
            header = list(reader.fieldnames or [])
            lines = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{flag} {path}: cannot be read as a table: {error}") from error
    if len(set(header)) < len(header):
        raise UserError(f"{flag} {path}: two columns have one name; rename one")
    return header, lines
