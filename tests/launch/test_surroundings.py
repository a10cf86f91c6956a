"""Odd surroundings: a notebook's environment, folders of the user's own, a system without SIGUSR1, Ctrl-C."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedproc_mpi import Config, run
from tests.support.processes import call, clean_environment, finish, mpich_python, start, wait_for

ONE_ROUND = ("--rounds", "1", "--local-epochs", "1", "--run-dir", "run")
WITHOUT_SIGUSR1 = """
import signal, sys
del signal.SIGUSR1
from fedproc_mpi.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_notebooks_backend_and_a_folder_called_data_prep(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "data_prep").mkdir()
    (tmp_path / "data_prep" / "__init__.py").write_text("raise RuntimeError('not the package')")
    env = {"MPLBACKEND": "module://nowhere.backend_inline"}
    inspect = "import sys; sys.path.pop(0); from data_prep.__main__ import main; sys.exit(main(sys.argv[1:]))"
    jobs = [
        start(["-m", "fedproc_mpi", *ONE_ROUND], tmp_path, env=env),  # it makes the default shards as well
        start(["-c", inspect, "inspect", str(shards), "--plot", "p.png"], tmp_path, env=env),
    ]
    for job in jobs:
        done = finish(job)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "accuracy.png").exists()
    assert (tmp_path / "p.png").exists()


def test_without_sigusr1(shards: Path, tmp_path: Path) -> None:
    """As on Windows."""
    run = ["--shards", str(shards), *ONE_ROUND]
    for job in [start(["-c", WITHOUT_SIGUSR1, *flags], tmp_path) for flags in (run, ["--help"])]:
        done = finish(job)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "summary.json").exists()


SLOW = """
import os, time
from dataclasses import dataclass
from fedproc_mpi.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Slow(FedAvg):
    def client_update(self, task):
        open(f"at{task.round.t}", "w").close()
        time.sleep(0.3)
        while task.round.t == 1 and not os.path.exists("go"):
            time.sleep(0.05)
        return super().client_update(task)
"""


def test_ctrl_c_says_what_is_saved_and_how_to_go_on(shards: Path, tmp_path: Path) -> None:
    """One: the round is finished. Two: at once. Either way nothing but our own lines is printed."""
    folders = {presses: tmp_path / str(presses) for presses in (1, 2)}
    flags = ["--algorithm", "slow.py", "--shards", str(shards), "--rounds", "3", "--local-epochs", "1"]
    command = ["-m", "fedproc_mpi", *flags, "--run-dir", "run"]
    for folder in folders.values():
        folder.mkdir()
        (folder / "slow.py").write_text(SLOW)
    jobs = {presses: start(command, folder) for presses, folder in folders.items()}
    for presses, job in jobs.items():
        wait_for(lambda presses=presses: (folders[presses] / "at1").exists())
        job.send_signal(signal.SIGINT)
        if presses == 2:
            time.sleep(1)  # two at one time would count as one
            job.send_signal(signal.SIGINT)
        (folders[presses] / "go").touch()
    saved = "saved in run: 1 of 3 rounds; --resume goes on"
    for presses, job in jobs.items():
        done = finish(job)
        first, last = [line for line in done.stderr.splitlines() if line]
        assert first == f"fedproc_mpi: SIGINT: stopping after this round (Ctrl-C again: at once); {saved}"
        if presses == 1:
            assert last == "fedproc_mpi: stopped by SIGINT after round 2 of 3; --resume goes on"
            assert done.returncode == 75
        else:
            assert last == f"fedproc_mpi: interrupted; {saved}"
            assert done.returncode == 130
    jobs = {presses: start([*command, "--resume"], folder) for presses, folder in folders.items()}
    hashes = set()
    for presses, job in jobs.items():
        done = finish(job)
        assert done.returncode == 0, done.stderr
        assert f"going on with round {4 - presses} of 3" in done.stdout
        hashes.add(json.loads((folders[presses] / "run" / "summary.json").read_text())["model_sha256"])
    quick = {"rounds": 3, "local_epochs": 1, "shards": str(shards), "run_dir": str(tmp_path / "whole")}
    whole = run(Config.create(algorithm="fedavg", **quick))
    assert whole is not None
    assert hashes == {whole.summary["model_sha256"]}


@pytest.mark.parametrize("vendor", ["Open MPI", "MPICH"])
def test_ctrl_c_at_mpirun(shards: Path, tmp_path: Path, vendor: str) -> None:
    """MPICH's hands it on. Open MPI's ends the ranks and drops what they say, so it was said before."""
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "go").touch()
    flags = ["--algorithm", "slow.py", "--shards", str(shards), "--rounds", "30", "--local-epochs", "1"]
    python = sys.executable if vendor == "Open MPI" else str(mpich_python())
    job = start(["-m", "fedproc_mpi", *flags, "--run-dir", "run"], tmp_path, ranks=3, python=python)
    wait_for(lambda: (tmp_path / "at2").exists())
    job.send_signal(signal.SIGINT)
    done = finish(job)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "run directory run; if it is stopped, --resume goes on" in done.stdout
    if vendor == "MPICH":
        assert "fedproc_mpi: SIGINT: stopping after this round (Ctrl-C again: at once);" in done.stderr
        assert "fedproc_mpi: stopped by SIGINT after round 3 of 30; --resume goes on" in done.stderr


def test_ctrl_c_before_the_rounds(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "interrupted.py").write_text(code)
    done = call(["-m", "fedproc_mpi", "--algorithm", "interrupted.py"], tmp_path)
    assert done.returncode == 130
    assert done.stderr == "fedproc_mpi: interrupted before a round began; start it again\n"


def test_closed_streams_and_a_directory_that_is_gone(shards: Path, tmp_path: Path) -> None:
    """`2>&-`: nothing is written into the file that is opened next."""
    command = 'exec "$0" -m {} {} {}'
    run = f"--shards {shards} --rounds 1 --local-epochs 1 --run-dir"
    jobs = [
        subprocess.Popen(
            ["sh", "-c", command.format(module, flags, closed), sys.executable],
            cwd=tmp_path,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for module, flags, closed in (
            ("fedproc_mpi", f"{run} a", "2>&-"),
            ("fedproc_mpi", f"{run} b", "<&- >&- 2>&-"),
            ("fedproc_mpi.doctor", "", "2>&-"),
        )
    ]
    assert [job.wait(timeout=120) for job in jobs] == [0, 0, 0]
    hashes = {json.loads((tmp_path / name / "summary.json").read_text())["model_sha256"] for name in "ab"}
    assert len(hashes) == 1
    (tmp_path / "gone").mkdir()
    script = f'cd gone && rmdir ../gone && exec "$0" -m fedproc_mpi {run} {tmp_path}/c'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "fedproc_mpi: the working directory is gone; start from one that is there\n",
    )
