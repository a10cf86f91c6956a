"""--partition-file: the rows of a file go to its clients; each thing wrong with it is told in one line."""

import json
from pathlib import Path

import numpy as np
import pytest

from data_prep.__main__ import main
from fedproc_mpi.shards import Shards

ROWS = 40


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Forty training images, each filled with its own row number, and eight test images."""
    x = np.broadcast_to(np.arange(ROWS, dtype=np.uint8)[:, None, None], (ROWS, 4, 4)).copy()
    y, test = np.arange(ROWS) % 4, np.full((8, 4, 4), 200, np.uint8)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=test, y_test=np.arange(8) % 4)
    return tmp_path


def prepare(folder: Path, name: str, text: str, *more: str) -> int:
    (folder / name).write_text(text, encoding="utf-8")
    own = ["--file", str(folder / "own.npz"), "--partition-file", str(folder / name)]
    return main(["npz", *own, "--out", str(folder / "out.h5"), *more])


def rows_by_client(folder: Path) -> list[list[int]]:
    """Each client's rows, told from the pixels in the file."""
    with Shards(folder / "out.h5") as shards:
        clients = [shards.client(i) for i in range(shards.num_clients)]
        for x_NHWC, y_N in clients:
            assert (y_N == x_NHWC[:, 0, 0, 0] % 4).all()
        return [x_NHWC[:, 0, 0, 0].tolist() for x_NHWC, _ in clients]


def names(folder: Path) -> list[str]:
    with Shards(folder / "out.h5") as shards:
        assert shards.header.partition == "file"
        return list(shards.header.client_names)


EVEN, ODD = list(range(0, ROWS, 2)), list(range(1, ROWS, 2))


@pytest.mark.parametrize(
    ("name", "text", "wanted", "named"),
    [
        ("a.json", json.dumps([ODD[::-1], EVEN]), [ODD, EVEN], []),
        ("b.json", json.dumps({"south": ODD, "north": EVEN}), [ODD, EVEN], ["south", "north"]),
        ("c.json", json.dumps({"1": ODD, "0": EVEN}), [EVEN, ODD], []),
        ("d.json", json.dumps({"10": ODD, "9": EVEN}), [EVEN, ODD], ["9", "10"]),
        ("e.csv", "row,client\n" + "".join(f"{r},{r % 2}\n" for r in range(ROWS)), [EVEN, ODD], []),
        (
            "f.csv",
            "\ufeffclient;age;row\n" + "".join(f"{'ns'[r % 2]};9;{r}\n" for r in reversed(range(ROWS))),
            [ODD, EVEN],
            ["s", "n"],
        ),
    ],
)
def test_each_client_gets_its_rows(
    data: Path,
    name: str,
    text: str,
    wanted: list[list[int]],
    named: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert prepare(data, name, text) == 0
    assert rows_by_client(data) == wanted
    assert names(data) == named
    assert "left out" not in capsys.readouterr().out


def test_rows_that_no_client_has_are_told(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(data, "p.json", json.dumps([[0, 1, 2, 3], [5, 6, 7, 9]])) == 0
    assert rows_by_client(data) == [[0, 1, 2, 3], [5, 6, 7, 9]]
    assert "32 of 40 training samples (first: row 4) left out" in capsys.readouterr().out


def test_the_file_says_where_its_split_is_from(data: Path) -> None:
    assert prepare(data, "p.json", json.dumps([EVEN, ODD])) == 0
    with Shards(data / "out.h5") as shards:
        assert shards.header.made_by == "python -m data_prep npz --partition-file p.json"


def test_a_validation_set_is_drawn_from_each_clients_rows(data: Path) -> None:
    assert prepare(data, "p.json", json.dumps([EVEN, ODD]), "--val-share", "0.2") == 0
    first, second = rows_by_client(data)
    assert set(first) < set(EVEN)
    assert set(second) < set(ODD)
    assert len(first) + len(second) == 32


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "p.json",
            '{"a": [0, 1], "b": [2, 40]}',
            "p.json: client b, row 40: the training half has rows 0 to 39",
        ),
        ("p.json", "[[0, 1], [-1]]", "client 1, row -1: the training half has rows 0 to 39"),
        ("p.json", '{"a": [0, 1.0]}', "client a, row 1.0: a row is a whole number"),
        ("p.json", '{"a": [true]}', "client a, row True: a row is a whole number"),
        ("p.json", '{"a": [null]}', "client a, row None: a row is a whole number"),
        ("p.json", '{"a": ["3"]}', "client a, row 3: a row is a whole number"),
        ("p.json", '{"a": [3, 5], "b": [4, 3]}', "client b, row 3: client a has this row already"),
        ("p.json", '{"a": [3, 5, 3]}', "client a, row 3: it has this row already"),
        ("p.json", '{"a": [3], "b": []}', "client b has no rows"),
        ("p.json", '{"a": [3], "a": [4]}', "client a stands there twice"),
        ("p.json", '{"a": 3}', "client a: its rows must be a list"),
        ("p.json", '{"a\\nb": [3]}', "client 'a\\nb': a name is one line"),
        ("p.json", '{" ": [3]}', "client ' ': a name is one line"),
        ("p.json", "[]", "no client in it"),
        ("p.json", "3", "it must hold"),
        ("p.json", "[[0, 1]", "cannot be read as JSON"),
        ("p.json", "[" * 100_000, "cannot be read as JSON"),
        ("p.csv", "row,site\n1,a\n", "no column client; it needs row and client"),
        ("p.csv", "row,client\n", "no client in it"),
        ("p.csv", "row,client\n1,a\n1.5,a\n", "line 3: client a, row 1.5: a row is a whole number"),
        ("p.csv", "row,client\n1,a\n\n2,\n", "line 4, row 2: no client"),
        ("p.csv", "row,client\n1,a\n2,b\n1,b\n", "line 4: client b, row 1: client a has this row already"),
        ("p.csv", "row,client\n1,a\n99,b\n", "line 3: client b, row 99: the training half has rows 0 to 39"),
        ("p.csv", "row,client,row\n1,a,2\n", "two columns have one name"),
        ("p.txt", "row,client\n1,a\n", "a .json or a .csv is read"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    data: Path, name: str, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(data, name, text) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (data / "out.h5").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--clients", "3"], "--clients 3: --partition-file says how many"),
        (["--partition", "iid"], "--partition iid and --partition-file are two partitions"),
        (["--beta", "0.1"], "--beta is for the partition dirichlet, and this is file"),
    ],
)
def test_flags_of_other_partitions_are_refused(
    data: Path, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(data, "p.json", json.dumps([EVEN, ODD]), *flags) == 2
    assert words in capsys.readouterr().err


def test_a_missing_file_is_told(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--file", str(data / "own.npz"), "--out", str(data / "out.h5")]
    for name in ("gone.json", "gone.csv"):
        assert main(["npz", *flags, "--partition-file", str(data / name)]) == 2
        said = capsys.readouterr().err
        assert f"{name}: cannot be read" in said
        assert "No such file" in said
