"""The job scripts under a real Slurm, as they are: `sbatch jobs/NAME.slurm FLAGS`."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.conftest import SMALL, Checkout
from tests.support.cases import POISON
from tests.support.processes import ROOT, call, skip_or_fail, wait_for

MPICH = Path(os.environ.get("FEDPROC_MPICH_VENV", ROOT / ".venv-mpich"))
LIMIT = 20  # seconds in which a mistake is told


def summary(run_dir: Path) -> dict:
    return json.loads((run_dir / "summary.json").read_text())


# ---- mistakes: one clear line, non-zero, in time -------------------------------------------------------


def told(log: str) -> str:
    """The one line that is ours."""
    lines = [line for line in log.splitlines() if line.startswith(("fedproc job: ", "fedproc_mpi: "))]
    said = [line for line in lines if " tasks by " not in line]  # the start line
    assert len(said) == 1, log
    assert "Traceback" not in log
    return said[0]


PACKAGE = f"{sys.executable} -m fedproc_mpi"
MPIRUN = str(Path(sys.executable).with_name("mpirun"))
MISTAKES = {
    "srun_without_pmi": ([], {"FEDPROC_LAUNCHER": "srun --mpi=none"}, "would make each task rank 0 of 1"),
    "bare_srun": ([], {"FEDPROC_LAUNCHER": "srun"}, "would make each task rank 0 of 1"),
    "both_launchers": ([], {"FEDPROC_LAUNCHER": "srun mpirun"}, "never two"),
    "unknown_plugin": ([], {"FEDPROC_LAUNCHER": "srun --mpi=pmi9"}, "this Slurm offers"),
    "missing_venv": ([], {"FEDPROC_VENV": "nowhere"}, "no Python environment in"),
    "no_conda": ([], {"FEDPROC_CONDA": "fed"}, "no conda on PATH"),
    "no_modules": ([], {"FEDPROC_MODULES": "openmpi"}, "module"),
    "gpus_per_task": ([], {"SLURM_GPUS_PER_TASK": "1"}, "ask with --gpus-per-node"),
    "missing_shards": (["--shards", "shards/cifar10_m30.h5"], {}, "python -m data_prep cifar10 --clients 30"),
    "missing_own_shards": (
        ["--shards", "shards/mine.h5"],
        {},
        "data_prep folders --root IMAGES --out shards/mine",
    ),
    "sbatch_s_own_option": (["--shards", "shards/mine.h5", "--time=1:00"], {}, "put it before the script"),
    "wrong_algorithm": (["--algorithm", "fedavgg"], {}, "did you mean fedavg"),
    "help": (["--help"], {}, "needs no job"),
}


@pytest.fixture(scope="module")
def submitted(checkout: Checkout) -> dict[str, str]:
    """All mistakes' jobs, submitted at once and waited for one after the other."""
    return {
        name: checkout.submit("--ntasks=2", "jobs/run.slurm", *flags, **variables)
        for name, (flags, variables, _) in MISTAKES.items()
    }


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_before_any_rank_runs(
    checkout: Checkout, submitted: dict[str, str], name: str
) -> None:
    code, log = checkout.finish(submitted[name], 3 * LIMIT)
    assert MISTAKES[name][2] in told(log)
    assert code == 2


def test_the_doctor_as_a_job(checkout: Checkout) -> None:
    code, log = checkout.finish(checkout.submit("--ntasks=3", "jobs/doctor.slurm"), 120)
    assert code == 0, log
    assert "3 rank(s)" in log
    assert re.search(r"^ok +reduce .* GB/s over mpi", log, re.M), log
    mistaken = {"FEDPROC_LAUNCHER": "srun --mpi=none"}
    code, log = checkout.finish(checkout.submit("jobs/doctor.slurm", **mistaken), 120)
    assert code == 1
    assert "would make each task rank 0 of 1" in log
    assert "ok       MPI library" in log


WRAPPED = {
    f"srun -n 4 {PACKAGE}": "started 4 tasks",
    f"srun -n 4 --kill-on-bad-exit=1 {PACKAGE}": "started 4 tasks",
    f"srun -n 3 {MPIRUN} -n 3 {PACKAGE}": "mpirun inside srun",
    "srun -n 3 jobs/cifar100_m100.slurm": "use sbatch",
}


@pytest.mark.parametrize("command", WRAPPED)
def test_launcher_mistakes_in_a_script_of_ones_own(checkout: Checkout, command: str) -> None:
    job = checkout.submit("--ntasks=4", "--output=jobs/logs/own-%j.out", "--wrap", command)
    code, log = checkout.finish(job, LIMIT)
    assert WRAPPED[command] in told(log)
    assert code != 0  # 2, but where srun has ended a task before it came to leave


def test_sbatch_typed_inside_another_jobs_step(checkout: Checkout) -> None:
    """As after `srun --pty bash`: sbatch hands the step's variables on, which are not this job's."""
    step = {"STEP_ID": "0", "STEPID": "0", "STEP_NUM_TASKS": "4", "STEP_NUM_NODES": "1", "CPU_BIND": "quiet"}
    inherited = {f"SLURM_{name}": value for name, value in step.items()} | {"PMI_RANK": "0", "PMI_SIZE": "4"}
    flags = [
        "--ntasks=2",
        "jobs/cifar10_m10.slurm",
        *SMALL,
        "--rounds",
        "1",
        "--run-dir",
        "runs/inside_a_step",
    ]
    code, log = checkout.finish(checkout.submit(*flags, **inherited), 120)
    assert code == 0, log
    assert "2 rank(s) over mpi" in log


def test_from_another_folder(checkout: Checkout, tmp_path: Path) -> None:
    script = str(checkout.folder / "jobs" / "cifar100_m100.slurm")
    job = checkout.submit(f"--output={tmp_path}/log", script, cwd=tmp_path)
    code, _ = checkout.finish(job, LIMIT)
    assert code == 2
    assert "no jobs/common.sh" in told((tmp_path / "log").read_text())


# ---- runs ----------------------------------------------------------------------------------------------


def test_cifar100_m100_by_any_number_of_tasks_and_both_mpi(checkout: Checkout) -> None:
    """21 tasks and 5 by Open MPI's mpirun, 3 by srun --mpi=pmi2 of MPICH: one SHA-256."""
    if not (MPICH / "bin" / "python").exists():
        skip_or_fail("no .venv-mpich (make .venv-mpich)")
    flags = ["jobs/cifar100_m100.slurm", *SMALL, "--rounds", "3"]
    found = {}
    for tasks, variables in {
        "21": {},
        "5": {"FEDPROC_LAUNCHER": "mpirun", "FEDPROC_STAGE_DIR": str(checkout.folder)},
        "3": {"FEDPROC_VENV": str(MPICH), "FEDPROC_LAUNCHER": "srun --mpi=pmi2"},
    }.items():
        run_dir = f"runs/by_{tasks}"
        more = ["--stage"] if tasks == "5" else []
        # the script's own number of tasks is 21
        options = [f"--ntasks={tasks}"] if tasks != "21" else []
        job = checkout.submit(*options, *flags, "--run-dir", run_dir, *more, **variables)
        code, log = checkout.finish(job, 240)
        assert code == 0, log
        if more:
            assert f"copying shards/cifar100_m100.h5 to {checkout.folder}/fedproc-{job}" in log
            assert not list(checkout.folder.glob("fedproc-*.h5"))
        found[tasks] = summary(checkout.folder / run_dir)
        assert found[tasks]["ranks"] == int(tasks)
        assert found[tasks]["transport"] == "mpi"
    print({tasks: line["model_sha256"] for tasks, line in found.items()})
    assert len({line["model_sha256"] for line in found.values()}) == 1
    other = checkout.submit(*flags, "--lr", "0.5", "--run-dir", "runs/by_21")
    code, log = checkout.finish(other, LIMIT)
    assert code == 2
    assert "holds another run (--lr was 0.01, now 0.5)" in told(log)
    lines = (checkout.folder / "runs/by_21/metrics.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["cohort"]) for line in lines] == [20, 20, 20]


def test_ones_own_images_from_folders_to_the_result(checkout: Checkout) -> None:
    """run.slurm on three sites: the serial run's SHA-256, and the same command again leaves it alone."""
    call([str(ROOT / "examples" / "site_images.py"), "images"], checkout.folder)
    folders = ["folders", "--root", "images", "--image-size", "8", "--channels", "1"]
    call(["-m", "data_prep", *folders, "--out", "shards/sites.h5"], checkout.folder)
    flags = ["--shards", "shards/sites.h5", *SMALL, "--rounds", "2"]
    job = checkout.submit("--ntasks=3", "jobs/run.slurm", *flags)
    serial = call(["-m", "fedproc_mpi", *flags, "--run-dir", "runs/serial"], checkout.folder)
    assert serial.returncode == 0, serial.stderr
    code, log = checkout.finish(job, 120)
    assert code == 0, log
    assert "fedproc, 3 rank(s) over mpi" in log
    (run_dir,) = checkout.folder.glob("runs/sites-fedproc-s0-*")
    assert summary(run_dir)["model_sha256"] == summary(checkout.folder / "runs/serial")["model_sha256"]
    code, log = checkout.finish(checkout.submit("--ntasks=2", "jobs/run.slurm", *flags), 3 * LIMIT)
    assert code == 0, log
    assert "holds this run, finished" in told(log)


def test_a_study_as_an_array(checkout: Checkout) -> None:
    """Each task its own run directory; what is finished is not submitted again."""
    (checkout.folder / "four.toml").write_text(
        "flags = {rounds = 1, local_epochs = 1, batch_size = 32}\n"
        'grid = {algorithm = ["fedavg", "fedproc"], seed = [0, 1]}\n'
    )
    words = ["four.toml", "--out", "runs/of four", "--slurm", "--max-parallel", "2", "--sbatch=--ntasks=2"]
    told = checkout.say("study", *words)
    job = told.split("study: job ")[1].split(":")[0]
    assert f"study: job {job}: an array of 4 runs" in told
    assert checkout.slurm.wait(job, 240) == [("COMPLETED", 0)] * 4, checkout.log(job)
    found = {
        path.parent.name: summary(path.parent) for path in checkout.folder.glob("runs/of four/*/model.pt")
    }
    assert {name: facts["algorithm"] for name, facts in found.items()} == {
        f"{algorithm}-seed{seed}": algorithm for algorithm in ("fedavg", "fedproc") for seed in (0, 1)
    }
    assert len({facts["model_sha256"] for facts in found.values()}) == 4
    assert "4 done: nothing to submit" in checkout.say("study", *words)
    assert "4 done" in checkout.say("study", *words[:3], "--status")
    alone = checkout.submit("--ntasks=2", "jobs/study.slurm")
    assert checkout.slurm.wait(alone, LIMIT) == [("FAILED", 2)]
    assert "fedproc_mpi.study NAME --slurm submits this script" in checkout.log(alone)


def test_a_scaling_study_as_jobs(checkout: Checkout) -> None:
    """A job per point; the command without --slurm measures nothing again and collects them."""
    size = ["--clients", "2", "--samples", "8", "--rounds", "3", "--flags=--model small-cnn --batch-size 8"]
    words = ["strong", "--out", "runs/of scaling", "--client-ranks", "1", "2", *size]
    told = checkout.say("scaling", *words, "--slurm", "--sbatch=--time=10")
    jobs = [line.split(": job ")[1] for line in told.splitlines() if ": job " in line]
    assert len(jobs) == 2, told
    for job in jobs:
        code, log = checkout.finish(job, 120)
        assert code == 0, log
    before = {path: path.stat().st_mtime_ns for path in checkout.folder.glob("runs/of scaling/*/model.pt")}
    assert {path.parent.name for path in before} == {"strong-r1-m2-c2", "strong-r2-m2-c2"}
    told = checkout.say("scaling", *words)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    table = (checkout.folder / "runs/of scaling/strong.csv").read_text().splitlines()
    assert len(table) == 3, told


def test_two_jobs_on_one_run_directory(checkout: Checkout) -> None:
    """The second is refused by the ranks themselves; the first one goes on."""
    flags = ["--ntasks=2", "jobs/cifar10_m10.slurm", *SMALL, "--seed", "8", "--rounds", "100000"]
    first = checkout.submit(*flags)
    wait_for(lambda: list(checkout.folder.glob("runs/cifar10_m10-fedproc-s8-*/checkpoint.pt")), 120)
    code, log = checkout.finish(checkout.submit(*flags), 60)
    assert code == 2, log
    (line,) = [line for line in log.splitlines() if "is being written by process" in line]
    assert line.startswith("fedproc_mpi: runs/cifar10_m10-fedproc-s8-")
    assert checkout.slurm.states(first)[0][0] == "RUNNING"
    checkout.slurm.cancel(first)


def test_an_interrupted_run_goes_on_when_submitted_again(checkout: Checkout) -> None:
    """Stopped by the signal before the end of the time, then kill -9 of a rank, then to the end."""
    flags = ["jobs/cifar10_m10.slurm", *SMALL, "--seed", "7", "--rounds", "40"]

    def running(tasks: int, rounds: int) -> tuple[str, Path]:
        job = checkout.submit(f"--ntasks={tasks}", *flags)

        def far_enough() -> bool:
            paths = list(checkout.folder.glob("runs/cifar10_m10-fedproc-s7-*/metrics.jsonl"))
            return bool(paths) and paths[0].read_bytes().count(b"\n") >= rounds

        wait_for(far_enough, 120)
        (run_dir,) = checkout.folder.glob("runs/cifar10_m10-fedproc-s7-*")
        return job, run_dir

    job, run_dir = running(2, 3)
    checkout.slurm.signal_batch(job, "USR1")
    code, log = checkout.finish(job, 60)
    assert code == 75, log
    assert "the same sbatch command goes on" in log
    assert not (run_dir / "summary.json").exists()
    done = len((run_dir / "metrics.jsonl").read_text().splitlines())
    job, _ = running(3, done + 3)
    os.kill(ranks_of(run_dir)[-1], signal.SIGKILL)
    code, log = checkout.finish(job, 60)
    assert code != 0, log

    code, log = checkout.finish(checkout.submit("--ntasks=2", *flags), 120)
    assert code == 0, log
    assert "holds this run, unfinished: going on" in log
    assert summary(run_dir)["resumed_at_round"] >= done + 2
    whole = [
        sys.executable,
        "-m",
        "fedproc_mpi",
        "--preset",
        "cifar10_m10",
        *flags[1:],
        "--run-dir",
        "runs/whole",
    ]
    subprocess.run(whole, cwd=checkout.folder, check=True, capture_output=True, timeout=120)
    assert summary(run_dir)["model_sha256"] == summary(checkout.folder / "runs/whole")["model_sha256"]


def test_a_job_that_a_diverged_client_ended_goes_on_without_it(checkout: Checkout) -> None:
    poison = ["--algorithm", POISON, "--poisoned", "1", "--rounds", "3"]
    flags = ["--ntasks=2", "jobs/cifar10_m10.slurm", *SMALL, *poison]
    code, log = checkout.finish(checkout.submit(*flags), 120)
    assert code == 3, log
    assert "--resume --on-diverged exclude" in log
    code, log = checkout.finish(checkout.submit(*flags, "--on-diverged", "exclude"), 120)
    assert code == 0, log
    assert "holds this run, unfinished: going on" in log
    (run_dir,) = checkout.folder.glob("runs/cifar10_m10-poison-*")
    assert summary(run_dir)["resumed_at_round"] == 1
    code, log = checkout.finish(checkout.submit(*flags), LIMIT)
    assert code == 2
    assert "--on-diverged was 'exclude', now 'stop'" in told(log)


def ranks_of(run_dir: Path) -> list[int]:
    """Pids of the processes that run the package for this directory."""
    wanted = f"--run-dir\0runs/{run_dir.name}\0".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if wanted in words and words.split(b"\0")[1:3] == [b"-m", b"fedproc_mpi"]:
            found.append(int(entry.name))
    return sorted(found)
