"""`python -m fedproc_mpi.scaling [AXIS…]`: seconds of a round by ranks and by clients. See --help."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedproc_mpi.comm.launch import require_alone
from fedproc_mpi.comm.mpirun import ALLOWED, launch_words
from fedproc_mpi.command import run_command
from fedproc_mpi.config import read_json
from fedproc_mpi.errors import FedprocError, UserError
from fedproc_mpi.flags import Parser, setting, validate
from fedproc_mpi.plugins import use_data_prep
from fedproc_mpi.report.page import page
from fedproc_mpi.report.tables import Section
from fedproc_mpi.store.files import CONFIG, write_output
from fedproc_mpi.studies.alphabeta import fit, read_samples
from fedproc_mpi.studies.local import Runner, run_here
from fedproc_mpi.studies.points import Measured, Point, Size, measured, plan
from fedproc_mpi.studies.progress import LOGS
from fedproc_mpi.studies.scaling_report import model_section, plot_model, plot_scaling, section
from fedproc_mpi.studies.slurm import sbatch
from fedproc_mpi.terminal import say

HELP = """Strong scaling (the same work on more client ranks), weak scaling (the same work for each of them),
and clients (m and the cohort at a fixed number of ranks), on generated images. Tables, pictures, and the
α–β model's prediction to 1,024 client ranks. What is finished is not run again."""
AXES = ("strong", "weak", "clients")
SCRIPT = Path("jobs/run.slurm")


class PointFailed(FedprocError):
    """A point's run did not end well (exit 1)."""


@dataclass(frozen=True)
class Options:
    """The flags."""

    out: Path = setting(Path("runs/scaling"), "the folder of runs, tables and pictures")
    client_ranks: tuple[str, ...] = setting(("1", "2"), "numbers of client ranks; a server comes on top")
    clients: int = setting(8, "clients (weak: of each client rank; clients: the smallest cohort)", low=1)
    samples: int = setting(200, "training images of a client", low=1)
    rounds: int = setting(6, "rounds of a point, of which the first does not count", low=2)
    local_epochs: int = setting(1, "E", low=1)
    flags: str = setting("", "more flags of the runs: --flags='--model resnet18 --algorithm fedavg'")
    slurm: bool = setting(
        False, "submit one job per point (jobs/run.slurm); later, the command without it collects"
    )
    sbatch: str = setting("", "of --slurm: options of sbatch: --sbatch='--time=1:00:00'")

    def __post_init__(self) -> None:
        validate(self)
        if (
            not all(text.isdecimal() and int(text) >= 1 for text in self.client_ranks)
            or not self.client_ranks
        ):
            raise UserError(f"--client-ranks {' '.join(self.client_ranks)}: must be whole numbers from 1")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 a run failed, 2 the user's input, 75 stopped."""
    return run_command("fedproc_mpi.scaling", _scaling, argv)


def _scaling(argv: list[str]) -> None:
    require_alone("scaling")
    parser = Parser("scaling", prog="python -m fedproc_mpi.scaling", description=HELP)
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"{', '.join(AXES)}; none: all")
    given, options = parser.read_as(Options, argv)
    if wrong := [axis for axis in given.axes if axis not in AXES]:
        raise UserError(f"{wrong[0]}: no such axis; known: {', '.join(AXES)}")
    ranks = sorted({int(text) for text in options.client_ranks})
    size = Size(
        options.clients, options.samples, options.rounds, options.local_epochs, shlex.split(options.flags)
    )
    points = {axis: plan(axis, ranks, size, options.out) for axis in given.axes or AXES}
    missing = [p for of_axis in points.values() for p in of_axis if measured(p, options.out) is None]
    for point in missing:
        _make_shards(point)
    if options.slurm and missing:
        _submit(missing, options)
        return
    if missing:
        _run(missing, options.out)
    if "strong" in points:
        _measure_messages([point.ranks for point in points["strong"]], options.out)
    sections = _sections(points, options.out)
    text = "\n\n".join(["# Scaling", *(one.markdown() for one in sections)])
    write_output(text + "\n", options.out / "scaling.md")
    write_output(page("Scaling", sections, options.out), options.out / "scaling.html")
    say("\n\n".join(one.text() for one in sections) + f"\n\n{options.out / 'scaling.html'}")


def _make_shards(point: Point) -> None:
    use_data_prep()
    from data_prep.cli import read_sharding, shard

    sharding = read_sharding(point.data[0], point.data[1:])
    if not sharding.out.exists():
        shard(point.data[0], sharding)


def _run(points: Sequence[Point], out: Path) -> None:
    for point in points:
        say(f"scaling: {point.run.name} …")
        with Runner(point.ranks) as runner:
            if code := run_here(point.run, out, runner, lambda: None):
                raise PointFailed(f"{point.run.name} ended with {code}; {out / LOGS} has what it said")


def _submit(points: Sequence[Point], options: Options) -> None:
    for point in points:
        size = [f"--ntasks={point.ranks}", f"--job-name={point.run.name}"]
        job = sbatch([*size, *shlex.split(options.sbatch)], SCRIPT, point.run.words)
        say(f"scaling: {point.run.name}: job {job}")
    say("scaling: once they are done, the same command without --slurm collects them")


def _measure_messages(ranks: Sequence[int], out: Path) -> None:
    """Measure messages on this machine, for each number of ranks that was not measured yet."""
    for number in ranks:
        path = out / f"messages-{number}.json"
        if not path.exists():
            say(f"scaling: messages of {number} ranks …")
            words = [*launch_words(number), sys.executable, "-m", "fedproc_mpi.studies.messages", str(path)]
            environment = {**ALLOWED, **os.environ}
            done = subprocess.run(
                words, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, check=False
            )
            if done.returncode:
                raise PointFailed(f"messages of {number} ranks: {' '.join(done.stderr.split())[-300:]}")


def _sections(points: dict[str, list[Point]], out: Path) -> list[Section]:
    found = []
    for axis, of_axis in points.items():
        done = [one for point in of_axis if (one := measured(point, out)) is not None]
        if not done:
            continue
        caption = _caption(done, out)
        picture = plot_scaling(axis, done, out / f"{axis}.png")
        found.append(section(axis, done, caption, picture.name))
        table = found[-1].table
        if table is not None:
            write_output(table.csv(), out / f"{axis}.csv")
        samples = read_samples(sorted(out.glob("messages-*.json")))
        if axis == "strong" and samples:
            fits = {operation: fit(of_it) for operation, of_it in samples.items()}
            picture = plot_model(done, fits, out / "predicted.png")
            found.append(model_section(done, fits, caption, picture.name))
    return found


def _caption(found: Sequence[Measured], out: Path) -> str:
    """Where it was measured: hosts, CPU or GPU, MPI, versions."""
    facts = read_json(out / found[-1].point.run.name / CONFIG)["environment"]
    places = facts["placements"]
    hosts = list(dict.fromkeys(place["host"] for place in places))
    gpus = sorted({str(place["gpu"]) for place in places if place.get("gpu") is not None})
    device = f"GPU {', '.join(gpus)}" if gpus else f"CPU {facts['cpu']}, {os.cpu_count()} cores here"
    mpi = facts.get("mpi") or facts.get("mpi_library") or facts["transport"]
    config = found[-1].point.run.config
    return (
        f"{config.algorithm}, {config.model}, E = {config.local_epochs}, batch {config.batch_size}; "
        f"{len(hosts)} host(s), {device}; {' '.join(str(mpi).split())[:60]}; torch {facts['torch']}."
    )


if __name__ == "__main__":
    sys.exit(main())
