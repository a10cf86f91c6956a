"""Jobs as a user starts them: law 1 over rank counts, a kill, a failing rank, wrong input, wrong launches."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest

from fedproc_mpi.comm import launch
from tests.support.jobs import CONFIGS
from tests.support.processes import QUICK, ROOT, call, clean_environment, finish, kill_tree, start, wait_for

JOBS = str(ROOT / "tests" / "support" / "jobs.py")


@pytest.fixture(scope="module")
def reference(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Hashes, accuracies and losses of the configs, by one plain process."""
    return hashes_of(None, shards, tmp_path_factory.mktemp("serial"))


def hashes_of(ranks: int | None, shards: Path, folder: Path, timeout: float = 240) -> dict:
    out = folder / "out.json"
    done = call([JOBS, "hashes", str(shards), str(out)], folder, ranks, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_result_does_not_depend_on_the_number_of_ranks(
    reference: dict, shards: Path, tmp_path: Path, ranks: int
) -> None:
    assert set(reference) == set(CONFIGS)
    assert len({sha for sha, _ in reference.values()}) == len(CONFIGS)
    assert hashes_of(ranks, shards, tmp_path) == reference


def test_result_does_not_depend_on_the_machines_load(reference: dict, shards: Path, tmp_path: Path) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        assert hashes_of(3, shards, tmp_path, timeout=500) == reference
    finally:
        for process in busy:
            process.kill()
            process.wait()


def lines_in(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_kill_9_of_the_whole_job_and_resume_on_other_ranks(shards: Path, tmp_path: Path) -> None:
    flags = ["--shards", str(shards), "--rounds", "12", "--local-epochs", "1"]
    job = ["-m", "fedproc_mpi", *flags, "--run-dir"]
    whole = call([*job, "whole"], tmp_path)
    assert whole.returncode == 0, whole.stderr
    process = start([*job, "killed"], tmp_path, ranks=3)
    wait_for(lambda: lines_in(tmp_path / "killed") >= 4)
    kill_tree(process.pid)
    process.communicate()
    assert not (tmp_path / "killed" / "summary.json").exists()
    resumed = call([*job, "killed", "--resume"], tmp_path, ranks=4)
    assert resumed.returncode == 0, resumed.stderr
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "killed")]
    assert summaries[0]["model_sha256"] == summaries[1]["model_sha256"]
    assert summaries[1]["resumed_at_round"] >= 3
    rounds = [json.loads(line)["round"] for line in (tmp_path / "killed" / "metrics.jsonl").open()]
    assert rounds == list(range(12))


FAILING = """
import time
from dataclasses import dataclass
from pathlib import Path
from fedproc_mpi.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Failing(FedAvg):
    def client_update(self, trainer, data, state, r, own):
        if r.t == 1 and data.client == 2:
            Path("failed_at").write_text(str(time.time()))
            raise ERROR("out of cheese")
        return super().client_update(trainer, data, state, r, own)
"""


@pytest.mark.parametrize(
    ("transport", "error"), [("mpi", "RuntimeError"), ("torch", "RuntimeError"), ("mpi", "SystemExit")]
)
def test_a_failing_rank_ends_the_job_with_its_error_shown_once(
    shards: Path, tmp_path: Path, transport: str, error: str
) -> None:
    (tmp_path / "failing.py").write_text(FAILING.replace("ERROR", error))
    flags = ["--algorithm", "failing.py", "--shards", str(shards), *QUICK, "--transport", transport]
    done = call(["-m", "fedproc_mpi", *flags], tmp_path, ranks=4, timeout=60)
    ended = time.time()
    assert done.returncode not in (0, 2, 3, 75)
    assert done.stderr.count(f"{error}: out of cheese") == 1
    assert "rank" in done.stderr
    assert ended - float((tmp_path / "failed_at").read_text()) < 10


@pytest.mark.parametrize("ranks", [None, 3])
def test_wrong_input_is_one_line_and_exit_2(shards: Path, tmp_path: Path, ranks: int | None) -> None:
    damaged = Path(shutil.copy(shards, tmp_path / "damaged.h5"))
    with h5py.File(damaged, "r+") as file:
        row = int(file["train/offsets"][3])
        file["train/images"][row, 0, 0, 0] = 255 - file["train/images"][row, 0, 0, 0]
    before = sorted(tmp_path.iterdir())
    cases = {
        ("--shards", "damaged.h5"): "client 3: checksum mismatch",
        ("--shards", "nope.h5"): "no such shards file",
        ("--shards", str(shards), "--sample-rate", "0.01"): "draws none",
        ("--roundz", "3"): "did you mean --rounds",
        ("--transport", "serial" if ranks else "mpi"): "--transport",
        ("--device", "cuda", "--shards", str(shards)): "torch sees no GPU on",
        **({} if ranks else {("--transport", "torch", "--shards", str(shards)): "mpirun -n 2, or more"}),
    }
    processes = [start(["-m", "fedproc_mpi", *flags], tmp_path, ranks) for flags in cases]
    for process, words in zip(processes, cases.values(), strict=True):
        done = finish(process)
        assert done.returncode == 2, done.stderr
        ours = [line for line in done.stderr.splitlines() if line.startswith("fedproc_mpi:")]
        assert len(ours) == 1, done.stderr
        assert words in ours[0]
        assert "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_over_torch_a_run_from_the_command_line_leaves_in_order(shards: Path, tmp_path: Path) -> None:
    """gloo here, NCCL on GPUs: the same hash as alone; exit 3 when training fails; nothing hangs."""
    flags = ["--shards", str(shards), *QUICK]
    alone = call(["-m", "fedproc_mpi", *flags, "--run-dir", "alone"], tmp_path)
    assert alone.returncode == 0, alone.stderr
    over = ["-m", "fedproc_mpi", "--transport", "torch", *flags]
    done = call([*over, "--run-dir", "torch"], tmp_path, ranks=3)
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
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("alone", "torch")]
    assert summaries[0]["model_sha256"] == summaries[1]["model_sha256"]
    assert summaries[1]["transport"] == "torch"
    diverged = call([*over, "--lr", "1e30"], tmp_path, ranks=3)
    assert diverged.returncode == 3, diverged.stderr


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self").exists(), reason="needs /proc")
def test_an_unwritable_run_directory(shards: Path, tmp_path: Path) -> None:
    flags = ["--shards", str(shards), *QUICK, "--run-dir", "/proc/nowhere/run"]
    done = call(["-m", "fedproc_mpi", *flags], tmp_path, ranks=2)
    assert done.returncode == 2
    assert "cannot write there" in done.stderr


@pytest.mark.parametrize("variable", ["SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_many_tasks_while_mpi_says_one_is_refused_before_torch(tmp_path: Path, variable: str) -> None:
    """`srun` without a PMI plugin: N jobs, each rank 0 of 1. One task alone speaks."""
    code = "import sys; from fedproc_mpi.__main__ import main\ntry: sys.exit(main([]))\nfinally: "
    code += "print('torch' in sys.modules)"
    told = []
    for rank in ("0", "1"):
        env = clean_environment(**{variable: "4", "SLURM_PROCID": rank})
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60
        )
        assert done.returncode == 2
        assert done.stdout.split() == ["False"]
        told.append(done.stderr)
    assert "started 4 tasks" in told[0]
    assert told[0].count("\n") == 1
    assert told[1] == ""


@pytest.mark.parametrize("by", ["OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID"])
def test_mpirun_inside_srun_is_told_from_mpiruns_own_daemons(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    """Daemons are one a node; `srun -n 3 mpirun` on one node or two is not."""
    for variables in ({"TASKS": "3", "NODES": "3"}, {"TASKS": "1", "NODES": "1"}, {}):
        with monkeypatch.context() as patch:
            for name, value in {f"SLURM_STEP_NUM_{k}": v for k, v in variables.items()}.items():
                patch.setenv(name, value)
            patch.setenv(by, "0")
            launch._refuse_mpirun_inside_srun()
    monkeypatch.setattr(launch, "PATIENCE", 0)
    monkeypatch.setattr(launch.signal, "signal", lambda *_: None)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    launch._refuse_mpirun_inside_srun()  # srun --mpi=pmi2: no mpirun's variable
    for task, rank in (("0", "0"), ("0", "1"), ("1", "0")):
        monkeypatch.setenv("SLURM_PROCID", task)
        monkeypatch.setenv(by, rank)
        with pytest.raises(SystemExit) as leaving:
            launch._refuse_mpirun_inside_srun()
        assert leaving.value.code == 2
    assert capsys.readouterr().err.count("mpirun inside srun") == 1


def test_a_batch_shells_slurm_ntasks_is_no_step(shards: Path, tmp_path: Path) -> None:
    flags = ["--shards", str(shards), "--rounds", "1", "--local-epochs", "1"]
    done = call(["-m", "fedproc_mpi", *flags], tmp_path, env={"SLURM_NTASKS": "21"})
    assert done.returncode == 0, done.stderr


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


@pytest.mark.parametrize("ranks", [None, 3])
def test_sigusr1_before_the_rounds_is_exit_75(shards: Path, tmp_path: Path, ranks: int | None) -> None:
    """It comes while rank 0 reads a user's algorithm, and no rank has begun."""
    early = (
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGUSR1)\nexcept BaseException:\n    pass\n"
    )
    (tmp_path / "early.py").write_text(early)
    done = call(["-m", "fedproc_mpi", "--algorithm", "early.py", "--shards", str(shards)], tmp_path, ranks)
    assert done.returncode == 75, done.stderr
    ours = [line for line in done.stderr.splitlines() if line.startswith("fedproc_mpi:")]
    assert ours == ["fedproc_mpi: stopped by SIGUSR1 before a round began; start it again"]
    assert not (tmp_path / "runs").exists()
