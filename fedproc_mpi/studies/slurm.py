"""A study's runs as one Slurm job array: `jobs/study.slurm` takes the words of its task from a file."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fedproc_mpi.errors import UserError, reason
from fedproc_mpi.store.files import write_output
from fedproc_mpi.studies.plan import PlannedRun

WORDS = "words.json"  # in the study's directory
SCRIPT = Path("jobs/study.slurm")


def write_words(runs: Sequence[PlannedRun], out: Path) -> None:
    """What each task of the array runs, by its number."""
    out.mkdir(parents=True, exist_ok=True)
    write_output(json.dumps([[run.name, *run.words] for run in runs], indent=1) + "\n", out / WORDS)


def read_words(out: Path, task: str) -> list[str]:
    """The words of a task, for the job script. UserError where there is none of that number."""
    try:
        every = json.loads((out / WORDS).read_text())
        return [str(word) for word in every[int(task)][1:]]
    except (OSError, ValueError, IndexError) as error:
        raise UserError(f"{out / WORDS}: no task '{task}' of a study: {reason(error)}") from error


def submit(numbers: Sequence[int], out: Path, max_parallel: int, options: Sequence[str]) -> str:
    """Submit one array of these tasks; returns the job's number. options, errors: as for `sbatch`."""
    array = ",".join(map(str, numbers)) + (f"%{max_parallel}" if max_parallel else "")
    return sbatch([f"--array={array}", *options], SCRIPT, [str(out)])


def sbatch(options: Sequence[str], script: Path, words: Sequence[str]) -> str:
    """Submit a job script of the repository with its words; returns the job's number.

    options: of sbatch, before the script. Raises UserError where sbatch is missing or refuses.
    """
    program = shutil.which("sbatch")
    if program is None:
        raise UserError("--slurm: no sbatch on PATH; submit from a login node of the cluster")
    if not script.is_file():
        raise UserError(f"--slurm: no {script} here; submit from the repository's folder")
    words = [program, "--parsable", *options, str(script), *words]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise UserError(f"--slurm: sbatch refused: {' '.join(done.stderr.split())[:300]}")
    return done.stdout.strip().partition(";")[0]
