"""Commands on terminals that cannot show every character, and in pipes whose reader goes away."""

from pathlib import Path

import pytest

from tests.support.processes import finish, start

COMMANDS = (
    ["-m", "fedproc_mpi", "--help"],
    ["-m", "fedproc_mpi.doctor", "--help"],
    ["-m", "data_prep", "--help"],
    ["-m", "data_prep", "folders", "--help"],
)
ASCII = ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})


@pytest.mark.parametrize("env", ASCII, ids=["ascii", "posix"])
def test_an_ascii_terminal_gets_question_marks(shards: Path, tmp_path: Path, env: dict[str, str]) -> None:
    commands = [*COMMANDS, ["-m", "data_prep", "inspect", str(shards)]]
    for job in [start(command, tmp_path, env=env) for command in commands]:
        done = finish(job)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()
    assert "8?8 px" in done.stdout


def test_a_reader_that_goes_away_ends_nothing(shards: Path, tmp_path: Path) -> None:
    """Even a run goes on to its end; nothing is said of the pipe."""
    run = ["-m", "fedproc_mpi", "--shards", str(shards), "--rounds", "2", "--local-epochs", "1"]
    commands = [*COMMANDS, ["-m", "data_prep", "inspect", str(shards)], [*run, "--run-dir", "run"]]
    jobs = [start(command, tmp_path) for command in commands]
    for job in jobs:
        assert job.stdout
        job.stdout.close()
    for job in jobs:
        assert job.stderr
        assert (job.stderr.read(), job.wait()) == ("", 0)
    assert (tmp_path / "run" / "summary.json").exists()
