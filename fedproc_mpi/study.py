"""`python -m fedproc_mpi.study NAME|FILE.toml`: a grid of runs, here or as a Slurm array. See --help."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedproc_mpi.comm.launch import own_cores, require_alone
from fedproc_mpi.command import run_command
from fedproc_mpi.errors import FedprocError, UserError
from fedproc_mpi.flags import Parser, setting, validate
from fedproc_mpi.plugins import use_data_prep
from fedproc_mpi.studies import progress
from fedproc_mpi.studies.cost import estimate
from fedproc_mpi.studies.local import Runner, run_here
from fedproc_mpi.studies.plan import Study, read_study, shipped
from fedproc_mpi.studies.slurm import read_words, submit, write_words
from fedproc_mpi.terminal import say

HELP = f"""Every combination of a grid of flags, each with a run directory under --out. Finished runs are left
alone, unfinished ones go on. Studies that come with the package: {", ".join(shipped())}."""


class SomeFailed(FedprocError):
    """Not all runs of a study ended well (exit 1)."""


@dataclass(frozen=True)
class Options:
    """The flags."""

    out: str = setting("", "the directory of the runs (default: runs/NAME)")
    smoke: bool = setting(False, "the small size that the study's file names, to try it out")
    ranks: int = setting(0, "processes of a run on this machine; 0: one more than the cores", low=0)
    plan: bool = setting(False, "show the runs and what they cost, and start nothing")
    status: bool = setting(False, "show how far the runs are, and start nothing")
    slurm: bool = setting(False, "submit what is unfinished as one Slurm array (jobs/study.slurm)")
    max_parallel: int = setting(0, "of --slurm: how many runs at a time; 0: as many as Slurm gives", low=0)
    sbatch: str = setting("", "of --slurm: options of sbatch: --sbatch='--ntasks=5 --time=4:00:00'")

    def __post_init__(self) -> None:
        validate(self)
        if not self.slurm and (self.sbatch or self.max_parallel):
            raise UserError("--sbatch and --max-parallel are for --slurm")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 all done, 1 some failed, 2 the user's input, 75 stopped."""
    return run_command("fedproc_mpi.study", _study, argv)


def _study(argv: list[str]) -> None:
    if argv[:1] == ["--words"] and len(argv) == 3:  # jobs/study.slurm asks: a task's words, each ended by NUL
        sys.stdout.write("".join(f"{word}\0" for word in read_words(Path(argv[1]), argv[2])))
        return
    require_alone("study")
    parser = Parser("study", prog="python -m fedproc_mpi.study", description=HELP)
    parser.add_argument("study", metavar="STUDY", help="the name of a shipped study, or a FILE.toml")
    given, options = parser.read_as(Options, argv)
    out = Path(options.out or f"runs/{Path(given.study).stem}{'-smoke' if options.smoke else ''}")
    study = read_study(given.study, out, options.smoke)
    if options.plan:
        _show_plan(study)
        return
    states = [progress.state_of(run, out) for run in study.runs]
    if options.status:
        say(f"{study.title}\n\n{progress.table(states).text()}\n\n{progress.in_short(states)}")
        return
    _make_shards(study)
    if options.slurm:
        _submit(study, states, out, options)
    else:
        _run(study, out, options.ranks or len(own_cores()) + 1)


def _show_plan(study: Study) -> None:
    say(f"{study.title}: {len(study.runs)} runs; {estimate(study)}")
    for run in study.runs:
        say(f"  {run.name}: {shlex.join(['python', '-m', 'fedproc_mpi', *run.words])}")


def _make_shards(study: Study) -> None:
    """Make the shards files that are missing and whose names say how. UserError for another one."""
    use_data_prep()
    from data_prep.cli import require, words_to_make

    for shards in dict.fromkeys(run.config.shards for run in study.runs):
        words = words_to_make(Path(shards))
        if not Path(shards).exists() and words:
            say(f"study: {shlex.join(words)}")
            done = subprocess.run([sys.executable, *words[1:]], stdin=subprocess.DEVNULL, check=False)
            if done.returncode:
                raise UserError(f"{shards} could not be made; see above")
        require(Path(shards))


def _submit(study: Study, states: Sequence[progress.State], out: Path, options: Options) -> None:
    numbers = [i for i, state in enumerate(states) if state.what not in (progress.DONE, progress.RUNNING)]
    if not numbers:
        say(f"study: {progress.in_short(states)}: nothing to submit")
        return
    write_words(study.runs, out)
    job = submit(numbers, out, options.max_parallel, shlex.split(options.sbatch))
    say(f"study: job {job}: an array of {len(numbers)} runs; --status shows how far they are")


def _run(study: Study, out: Path, ranks: int) -> None:
    """One after another. Raises SomeFailed at the end, Stopped after a signal."""
    failed = []
    with Runner(ranks) as runner, progress.Shown(study.runs, out) as shown:
        for run in study.runs:
            if progress.state_of(run, out).what == progress.DONE:
                continue
            shown.update(run)
            code = run_here(run, out, runner, partial(shown.update, run))
            shown.tell(run, code)
            if code:
                failed.append(run.name)
    states = [progress.state_of(run, out) for run in study.runs]
    say(f"\n{progress.table(states).text()}\n\n{progress.in_short(states)}")
    if failed:
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        logs = out / progress.LOGS
        raise SomeFailed(f"{', '.join(failed[:5])}{more} did not end well; {logs} has what they said")


if __name__ == "__main__":
    sys.exit(main())
