"""Jobs as a user starts them: wrong input, a failing rank, wrong launches, a signal, the first run.

Each rank's start of torch is what costs the time, and some ranks wait: what can start together does.
"""

import json
import socket
from pathlib import Path

import pytest

from fedproc_mpi import Config, run
from tests.support.cases import poisoned, wrong_input
from tests.support.processes import QUICK, ROOT, call, finish, start


def ours(stderr: str) -> list[str]:
    """The lines that are the package's own."""
    assert "Traceback" not in stderr
    return [line for line in stderr.splitlines() if line.startswith("fedproc_mpi:")]


def test_what_goes_wrong_is_one_line_from_3_ranks(shards: Path, tmp_path: Path) -> None:
    """Wrong input, and a client that diverges on one rank: the same exit code on each."""
    folder, out = tmp_path / "job", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    wrong = wrong_input(folder, shards, transport="serial")
    before = sorted(folder.iterdir())
    diverging = tuple(poisoned(shards, tmp_path / "run", "1", "stop"))
    wanted = [(words, 2, told) for words, told in wrong.items()]
    wanted += [(diverging, 3, "round 2: client 1: model classifier.bias reached nan")]
    script = str(ROOT / "tests" / "support" / "run_commands.py")
    done = call([script, json.dumps([words for words, _, _ in wanted]), str(out)], folder, ranks=3)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((out / f"{rank}.json").read_text()) for rank in range(3)]
    for (words, code, told), *said in zip(wanted, *ranks, strict=True):
        assert [found for found, _ in said] == [code] * 3, words
        (line,) = [line for _, stderr in said for line in ours(stderr)]
        assert told in line
    assert sorted(folder.iterdir()) == before


def test_exit_codes_reach_the_shell(shards: Path, tmp_path: Path) -> None:
    flags = ["--shards", str(shards), *QUICK, "--run-dir", "/proc/nowhere/run"]
    unwritable = start(["-m", "fedproc_mpi", *flags], tmp_path, ranks=2)
    alone = finish(start(["-m", "fedproc_mpi", "--roundz", "3"], tmp_path))
    assert alone.returncode == 2
    assert len(ours(alone.stderr)) == alone.stderr.count("\n") == 1
    done = finish(unwritable)
    assert done.returncode == 2
    assert "cannot write there" in done.stderr


FAILING = """
from dataclasses import dataclass
from fedproc_mpi.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Failing(FedAvg):
    def client_update(self, task):
        if task.round.t == 1 and task.data.client == 2:
            raise ERROR("out of cheese")
        return super().client_update(task)
"""


@pytest.mark.parametrize("transport", ["mpi", "torch"])
def test_a_failing_rank_ends_the_job_with_its_error_shown_once(
    shards: Path, tmp_path: Path, transport: str
) -> None:
    """An exception, and sys.exit in a user's code; the others wait in MPI, or in gloo."""
    errors = ["RuntimeError", "SystemExit"] if transport == "mpi" else ["RuntimeError"]
    jobs = []
    for error in errors:
        (tmp_path / error).mkdir()
        (tmp_path / error / "failing.py").write_text(FAILING.replace("ERROR", error))
        flags = ["--algorithm", "failing.py", "--shards", str(shards), *QUICK, "--transport", transport]
        jobs.append(start(["-m", "fedproc_mpi", *flags], tmp_path / error, ranks=3))
    for error, job in zip(errors, jobs, strict=True):
        done = finish(job)  # it ends by itself
        assert done.returncode not in (0, 2, 3, 75)
        assert done.stderr.count(f"{error}: out of cheese") == 1
        assert "rank" in done.stderr


def test_over_torch_a_run_from_the_command_line_leaves_in_order(shards: Path, tmp_path: Path) -> None:
    """gloo here, NCCL on GPUs: the same hash as alone; exit 3 when a client diverges; nothing hangs."""
    over = ["-m", "fedproc_mpi", "--transport", "torch"]
    job = start([*over, "--shards", str(shards), *QUICK, "--run-dir", "torch"], tmp_path, ranks=3)
    diverging = start([*over, *poisoned(shards, tmp_path / "diverged", "1", "stop")], tmp_path, ranks=3)
    alone = run(Config.create(rounds=4, local_epochs=1, shards=str(shards), run_dir=str(tmp_path / "alone")))
    assert alone is not None
    done = finish(job)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "3 rank(s) over torch" in done.stdout
    kept = json.loads((tmp_path / "torch" / "config.json").read_text())["environment"]
    assert kept["transport"] == "torch"
    for rank, placement in enumerate(kept["placements"]):
        line = (
            f"fedproc_mpi: rank {rank} on {socket.gethostname()}: CPU, 1 thread, {placement['cores']} cores"
        )
        assert done.stdout.count(line) == 1
        assert (placement["rank"], placement["host"], placement["gpu"]) == (rank, socket.gethostname(), None)
    summary = json.loads((tmp_path / "torch" / "summary.json").read_text())
    assert summary["model_sha256"] == alone.summary["model_sha256"]
    assert summary["transport"] == "torch"
    diverged = finish(diverging)
    assert diverged.returncode == 3, diverged.stderr
    (line,) = ours(diverged.stderr)
    assert "round 2: client 1: model classifier.bias reached nan" in line


def test_many_tasks_while_mpi_says_one_is_refused_before_torch(tmp_path: Path) -> None:
    """`srun` without a PMI plugin: N jobs, each rank 0 of 1. One alone speaks; the others wait for it."""
    code = "import sys; from fedproc_mpi.__main__ import main\ntry: sys.exit(main([]))\nfinally: "
    code += "print('torch' in sys.modules)"
    tasks = {
        (variable, rank): start(["-c", code], tmp_path, env={variable: "4", "SLURM_PROCID": rank})
        for variable in ("SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
        for rank in ("0", "1")
    }
    for (_, rank), task in tasks.items():
        done = finish(task)
        assert done.returncode == 2
        assert done.stdout.split() == ["False"]
        assert done.stderr.count("\n") == (rank == "0")
        assert ("started 4 tasks" in done.stderr) == (rank == "0")


def test_first_run_makes_the_embedded_shards_and_the_picture(tmp_path: Path) -> None:
    done = call(["-m", "fedproc_mpi", *QUICK], tmp_path, ranks=3)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "shards" / "digits_m10.h5").exists()
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert (run_dir / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    for words in ("round 4/4", "final accuracy", "best accuracy", "model_sha256", "run directory", "train"):
        assert words in done.stdout
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["ranks"] == 3
    assert summary["transport"] == "mpi"


def test_sigusr1_before_the_rounds_is_exit_75(shards: Path, tmp_path: Path) -> None:
    """It comes while rank 0 reads a user's algorithm, and no rank has begun."""
    early = (
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGUSR1)\nexcept BaseException:\n    pass\n"
    )
    (tmp_path / "early.py").write_text(early)
    command = ["-m", "fedproc_mpi", "--algorithm", "early.py", "--shards", str(shards)]
    for job in [start(command, tmp_path, ranks) for ranks in (None, 3)]:
        done = finish(job)
        assert done.returncode == 75, done.stderr
        assert ours(done.stderr) == ["fedproc_mpi: stopped by SIGUSR1 before a round began; start it again"]
    assert not (tmp_path / "runs").exists()
