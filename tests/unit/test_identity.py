"""What all ranks must hold alike."""

from pathlib import Path

import pytest

from fedproc_mpi.comm.serial import SerialComm
from fedproc_mpi.config import Config
from fedproc_mpi.errors import UserError
from fedproc_mpi.identity import differences, package_sha256, require_same, span


class Two(SerialComm):
    """Rank 0 of two, whose other rank holds the same but for `other`."""

    def __init__(self, **other: str) -> None:
        self.other = other

    def exchange(self, report: tuple[str, dict[str, str]]) -> list[tuple[str, dict[str, str]]]:
        _, facts = report
        return [report, ("n2", {**facts, **self.other})]


def test_ranks_that_hold_the_same_go_on() -> None:
    require_same(Two(), "n1", Config.create(lr=0.1), 64 * "a")


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"torch": "2.4.0"}, "torch (rank 0 on n1: 2."),
        ({"NumPy": "1.26"}, "rank 1 on n2: 1.26)"),
        ({"--lr": "0.2"}, "--lr (rank 0 on n1: 0.1, rank 1 on n2: 0.2)"),
        (
            {"the shards' contents": "bbb"},
            "the shards' contents (rank 0 on n1: aaaaaaaaaaaa, rank 1 on",
        ),
        ({"mine.py": "123"}, "mine.py (rank 0 on n1: none, rank 1 on n2: 123)"),
    ],
)
def test_what_differs_is_named(other: dict[str, str], told: str) -> None:
    with pytest.raises(UserError) as refused:
        require_same(Two(**other), "n1", Config.create(lr=0.1), 64 * "a")
    assert told in str(refused.value)
    assert refused.value.agreed


def test_differences_name_ranks_and_hosts() -> None:
    views = [("n1", {"a": "1", "b": "x"}), ("n1", {"a": "1", "b": "y"}), ("n2", {"a": "1", "b": "x"})]
    assert differences(views) == {"b": "rank 0 on n1: x, rank 1 on n1: y, rank 2 on n2: x"}


def test_numbers_in_short() -> None:
    assert span([5, 0, 1, 2, 9, 8]) == "0-2,5,8-9"


def test_the_packages_hash_follows_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "fedproc_mpi"
    (package / "sub").mkdir(parents=True)
    (package / "identity.py").write_text("x = 1")
    monkeypatch.setattr("fedproc_mpi.identity.__file__", str(package / "identity.py"))
    seen = {package_sha256()}
    (package / "identity.py").write_text("x = 2")
    seen.add(package_sha256())
    (package / "sub" / "new.py").write_text("")
    seen.add(package_sha256())
    (package / "notes.txt").write_text("")  # no source
    assert len(seen | {package_sha256()}) == 3
