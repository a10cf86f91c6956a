"""The parts of the job scripts that need no Slurm: the environment, prepare.sh, a start without sbatch."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedproc_mpi.config import PRESET_DIR, load_preset
from tests.support.files import make_shards
from tests.support.processes import ROOT, activated, clean_environment

PRESETS = {p.stem: file for p in PRESET_DIR.glob("*.toml") if (file := load_preset(p.stem).get("shards"))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout in which all shards but one are there."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("*.out", "site.sh"))
    for package in ("fedproc_mpi", "data_prep"):
        (tmp_path / package).symlink_to(ROOT / package)
    (tmp_path / "shards").mkdir()
    for preset, file in PRESETS.items():
        if preset != "cifar10_m10":
            (tmp_path / file).touch()
    return tmp_path


def script(folder: Path, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    env = clean_environment(**{"FEDPROC_VENV": sys.prefix, **variables})
    del env["PYTHONPATH"]
    return subprocess.run(
        ["bash", *command], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_each_preset_with_shards_has_its_job() -> None:
    for preset in PRESETS:
        text = (ROOT / "jobs" / f"{preset}.slurm").read_text()
        assert f'fedproc_job --preset {preset} "$@"' in text
        assert re.search(rf"^#SBATCH --job-name={preset}$", text, re.M)


def test_scripts_share_their_lines() -> None:
    """What cannot be in common.sh, because Slurm or the shell reads it first, is the same in each."""
    scripts = sorted((ROOT / "jobs").glob("*.slurm"))
    assert len(scripts) == 8
    own = ("#SBATCH --job-name", "#SBATCH --ntasks", "#SBATCH --time", "#SBATCH --output", "#SBATCH --array")
    lines = {
        path: [
            line
            for line in path.read_text().split("\n. jobs/common.sh\n")[0].splitlines()
            if not line.startswith(own) and (line.startswith(("#SBATCH", "##SBATCH")) or line[:1] != "#")
        ]
        for path in scripts
    }
    assert len({tuple(found) for found in lines.values()}) == 1, lines
    assert all(os.access(path, os.X_OK) for path in scripts)


def test_prepare_makes_what_is_missing_and_says_what_it_cannot(folder: Path) -> None:
    done = script(folder, "jobs/prepare.sh")
    assert done.returncode == 2
    assert done.stdout.count("is there") == len(PRESETS) - 1
    assert "data_prep cifar10 --clients 10 --beta 0.5 --seed 0 --out shards/cifar10_m10.h5" in done.stdout
    assert "prepare: not made: cifar10_m10" in done.stderr
    shutil.move(make_shards(folder, 10), folder / PRESETS["cifar10_m10"])
    assert script(folder, "jobs/prepare.sh").returncode == 0


def test_conda_and_modules(folder: Path) -> None:
    """Stand-ins for both, which put this Python on PATH as the real ones do."""
    base = folder / "base"
    (base / "etc/profile.d").mkdir(parents=True)
    use = f'export PATH="{Path(sys.executable).parent}:$PATH"'
    (base / "etc/profile.d/conda.sh").write_text(f'conda() {{ [ "$1 $2" = "activate fed" ] && {use}; }}\n')
    (base / "conda").write_text(f"#!/bin/sh\n[ \"$1 $2\" = 'info --base' ] && echo {base}\n")
    (base / "conda").chmod(0o755)
    ask = ["jobs/prepare.sh", "cifar100_m10"]
    path = f"{base}:/usr/bin:/bin"
    assert "is there" in script(folder, *ask, FEDPROC_CONDA="fed", PATH=path).stdout
    missing = script(folder, *ask, FEDPROC_CONDA="other", PATH=path)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "no environment other" in missing.stderr

    # A modulefile may read what is not set.
    module = {"BASH_FUNC_module%%": f'() {{ [ "$1 $2" = "load mpi" ] && {use}:$NEVER_SET; }}'}
    loaded = script(folder, *ask, FEDPROC_VENV="", FEDPROC_MODULES="mpi", PATH="/usr/bin:/bin", **module)
    assert "is there" in loaded.stdout, loaded.stderr
    missing = script(folder, *ask, FEDPROC_VENV="", FEDPROC_MODULES="mpj", **module)
    assert "module load mpj failed" in missing.stderr


def test_site_sh_is_the_one_place_and_the_environment_wins(folder: Path) -> None:
    (folder / "jobs" / "site.sh").write_text(': "${FEDPROC_VENV=nowhere}"\n')
    env = {"FEDPROC_VENV": sys.prefix}
    assert script(folder, "jobs/prepare.sh", "cifar100_m10", **env).returncode == 0
    done = subprocess.run(
        ["env", "-u", "FEDPROC_VENV", "bash", "jobs/prepare.sh"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert f"no Python environment in {folder}/nowhere" in done.stderr


def plan(folder: Path, *flags: str, **slurm: str) -> "subprocess.CompletedProcess[str]":
    """jobs/plan.py as a job's shell calls it."""
    job = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "FEDPROC_LAUNCHER": "mpirun", **slurm}
    return subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "plan.py"), *flags],
        cwd=folder,
        env=clean_environment(PATH=activated(), **job),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_an_algorithm_prints_does_not_shift_the_plan(tmp_path: Path) -> None:
    shards = make_shards(tmp_path)
    mine = "from fedproc_mpi.algorithms.fedavg import FedAvg\nprint('hello')\nclass Mine(FedAvg): 'Mine.'\n"
    (tmp_path / "mine.py").write_text(mine)
    done = plan(tmp_path, "--algorithm", "mine.py", "--shards", shards.name)
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stderr
    run_dir, file, launcher, *words = done.stdout.splitlines()
    assert run_dir.startswith(f"runs/{shards.stem}-mine-s0-")
    assert file == shards.name
    assert launcher.endswith("/mpirun")
    assert words[:2] == ["-n", "2"]


def test_the_run_directory_follows_from_flags_and_data(tmp_path: Path) -> None:
    """One file under two paths is one run; files of one name and other content are two, and so are flags."""
    first = make_shards(tmp_path)
    for folder in ("same", "other"):
        (tmp_path / folder).mkdir()
    shutil.copy(first, tmp_path / "same" / first.name)
    other = make_shards(tmp_path / "other", seed=1)
    (tmp_path / "mine.toml").write_text(f'shards = "{first.name}"\nrounds = 7\n')
    asked = {
        "preset": ["--preset", "mine.toml"],
        "its flags, a copy": ["--shards", f"same/{first.name}", "--rounds", "7", "--data-cache-mb", "1"],
        "other data": ["--shards", f"other/{other.name}", "--rounds", "7"],
        "other flag": ["--shards", first.name, "--rounds", "8"],
    }
    found = {what: plan(tmp_path, *flags).stdout.splitlines()[0] for what, flags in asked.items()}
    assert found["preset"] == found["its flags, a copy"]
    assert len({*found.values()}) == 3
    assert {name.rpartition("-")[0] for name in found.values()} == {f"runs/{first.stem}-fedproc-s0"}


def test_a_job_without_shards_is_a_trial_and_waste_is_told(tmp_path: Path) -> None:
    done = plan(tmp_path, SLURM_NTASKS="14", SLURM_CPUS_PER_TASK="2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "shards/digits_m10.h5"
    assert (tmp_path / "shards" / "digits_m10.h5").exists()
    assert "a trial on the embedded digits; --shards FILE" in done.stderr
    assert "13 client ranks, and 10 clients a round: --ntasks=11 is enough" in done.stderr
    assert "--cpus-per-task=2, and a rank computes with --threads 1" in done.stderr


@pytest.mark.parametrize("asked", ["--mpi=pmi2", "--mpi pmi2"])
def test_srun_gets_what_it_does_not_take_from_the_job(tmp_path: Path, asked: str) -> None:
    fake = tmp_path / "srun"
    fake.write_text("#!/bin/sh\necho 'MPI plugin types are...'; echo pmi2; echo none\n")
    fake.chmod(0o755)
    slurm = {"SLURM_NTASKS": "5", "SLURM_CPUS_PER_TASK": "4", "FEDPROC_LAUNCHER": f"srun {asked}"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "plan.py"), "--launcher"],
        env=clean_environment(PATH=activated(tmp_path), **slurm),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[:-4] == [str(fake), *asked.split()]
    assert words[-4:] == ["--ntasks=5", "--cpus-per-task=4", "--kill-on-bad-exit=1", "--export=ALL"]


def test_what_the_ranks_inherit(folder: Path) -> None:
    """Threads of the other libraries, and all that was loaded, even after sbatch --export=NONE."""
    names = "$SLURM_EXPORT_ENV $OMP_NUM_THREADS $MKL_NUM_THREADS $OPENBLAS_NUM_THREADS"
    command = f'. jobs/common.sh; activate; exec bash -c "echo {names}"'.replace("$", r"\$")
    threads = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "", "OPENBLAS_NUM_THREADS": ""}
    done = script(folder, "-c", command, SLURM_EXPORT_ENV="NONE", **threads)
    assert done.stdout.split() == ["ALL", "3", "1", "1"], done.stderr


def test_without_sbatch(folder: Path) -> None:
    done = script(folder, "jobs/cifar10_m10.slurm")
    assert done.returncode == 2
    assert done.stderr == "fedproc job: this is a job script: start it with sbatch\n"
