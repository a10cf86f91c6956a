"""What the ranks do in a round, step by step. `federated` puts the steps in Algorithm 1's order."""

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from torch import Tensor

from fedproc_mpi.clock import Clock
from fedproc_mpi.comm.launch import STOP_SIGNALS
from fedproc_mpi.errors import Stopped, TrainingFailed
from fedproc_mpi.learn.client import Round, Task
from fedproc_mpi.learn.evaluation import Evaluator, accuracies, add_counts
from fedproc_mpi.learn.sums import Diverged, WeightedSums, buffer_size
from fedproc_mpi.rank import Rank
from fedproc_mpi.shards import HeldOut
from fedproc_mpi.store.metrics import VALIDATED, best_line
from fedproc_mpi.store.run import RunStore

MOST_NAMED = 200  # of more clients only the last round's line holds each one's accuracy: lines stay short


@dataclass
class Report:
    """What a rank tells all others of its clients' round.

    samples: how many its clients hold. kept: the clients that keep something for their next round. diverged:
    clients, and what happened. seconds: by phase. signal: one that asked the run to stop, or 0.
    """

    samples: int = 0
    kept: list[int] = field(default_factory=list)
    diverged: list[tuple[int, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    signal: int = 0

    @property
    def total_seconds(self) -> float:
        """Seconds that the clients took."""
        return sum(self.seconds.values())


class StopSignals:
    """SIGTERM, SIGUSR1 and Ctrl-C: the round is finished first. After the `with` block all is as before.

    asked: the signals that came, in order. told: gives the words that a user should read at once, since a
    launcher may soon kill all ranks; '' where this rank is silent. A second Ctrl-C raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.told: Callable[[], str] = str
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # a notebook may run this in another
            for number in (*STOP_SIGNALS, signal.SIGINT):
                self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        words, interrupt = self.told(), number == signal.SIGINT
        if interrupt and number in self.asked:
            raise KeyboardInterrupt(f"interrupted; {words}" if words else "")
        if words and number not in self.asked:
            again = " (Ctrl-C again: at once)" if interrupt else ""
            text = (
                f"\nfedproc_mpi: {signal.Signals(number).name}: stopping after this round{again}; {words}\n"
            )
            with suppress(OSError):
                os.write(2, text.encode())  # not by print: the signal may have come in the middle of one
        self.asked.append(number)


def start_state(rank: Rank, store: RunStore) -> None:
    """w⁰ and c⁰ on every rank (Alg. 1 l.3), or the checkpoint's state. Collective.

    Raises TrainingFailed, agreed, where a client's class means are not finite.
    """
    algorithm, comm, state = rank.algorithm, rank.comm, rank.state
    comm.broadcast(state.buffer)
    groups = algorithm.start_groups(rank.trainer, rank.clients.sizes)
    if store.first_round or not groups:
        return
    sums, r = WeightedSums(groups, rank.device), Round(-1, rank.config.rounds, len(rank.clients))
    with comm.agreed():
        for k in rank.share_of_all():
            try:
                task = Task(rank.clients[k], state.tensors(), {}, r, rank.trainer)
                sums.add(k, algorithm.start_terms(task))
            except Diverged as error:
                who = rank.shards.client_label(k)
                why = f"before the first round: {who}: {error}; look at its data and --init"
                raise TrainingFailed(why) from error
    comm.reduce(sums.buffer)
    if comm.rank == 0:
        algorithm.start_update(state, sums)
    for name in algorithm.entries(rank.trainer):
        comm.broadcast(state[name])


def train(
    rank: Rank, store: RunStore, mine: Sequence[int], sums: WeightedSums, r: Round, signals: StopSignals
) -> Report:
    """Train this rank's clients, their terms into the sums (Alg. 1 l.7-8 and l.12-23)."""
    report, before = Report(), dict(rank.clock.seconds)
    for k in mine:
        task = Task(rank.clients[k], rank.state.tensors(), store.clients.load(k), r, rank.trainer_of(k))
        try:
            terms, kept = rank.algorithm.client_update(task)
            sums.add(k, terms)
        except Diverged as error:
            report.diverged.append((k, f"{rank.shards.client_label(k)}: {error}"))
            if rank.config.on_diverged == "stop":
                break
            continue
        if kept:
            store.clients.save(k, r.t, kept)
            report.kept.append(k)
        report.samples += task.num_examples
    report.signal = next(iter(signals.asked), 0)
    report.seconds = {k: v - before.get(k, 0.0) for k, v in rank.clock.seconds.items()}
    return report


def settle(rank: Rank, store: RunStore, reports: Sequence[Report], cohort: Sequence[int], t: int) -> None:
    """What the reports mean, the same on every rank. Raises TrainingFailed, agreed."""
    diverged, why = excluded(reports), ""
    if diverged and rank.config.on_diverged == "stop":
        why = (
            f"{diverged[0][1]}; start again with a lower --lr, or --resume --on-diverged exclude: without it"
        )
    elif len(diverged) == len(cohort):
        why = (
            f"every client of the cohort diverged; the first: {diverged[0][1]}; start again with a lower --lr"
        )
    if why:
        raise TrainingFailed(f"round {t + 1}: {why}", agreed=True)
    if len(rank.trainers) == 1:  # with unequal models samples per second do not tell a rank's speed
        for number, report in enumerate(reports):
            rank.speeds.observe(number, report.samples, report.total_seconds)
    store.clients.advance([k for report in reports for k in report.kept], t)


def excluded(reports: Sequence[Report]) -> list[tuple[int, str]]:
    """The clients that diverged, in order, and what happened."""
    return sorted(entry for report in reports for entry in report.diverged)


def stop_asked(reports: Sequence[Report]) -> int:
    """The signal that asked to stop, or 0; the same on every rank."""
    return next((report.signal for report in reports if report.signal), 0)


def round_line(
    r: Round,
    cohort: Sequence[int],
    reports: Sequence[Report],
    accuracies: Mapping[str, Any] | None,
    metrics: Mapping[str, Any],
    clock: Clock,
) -> dict[str, Any]:
    """A round's line of metrics.jsonl. accuracies: None where it was not evaluated.

    imbalance: the busiest rank's seconds over the mean of those that trained.
    Of the time that clients took ("train"), the slowest rank's seconds for class means ("prototypes") and
    clients' files ("client_state") are told apart.
    """
    if accuracies and r.t + 1 < r.total:
        by_name = {k for k, v in accuracies.items() if isinstance(v, Mapping) and len(v) > MOST_NAMED}
        accuracies = {k: v for k, v in accuracies.items() if k not in by_name}
    slowest, worked = max(reports, key=lambda report: report.total_seconds).seconds, clock.seconds["train"]
    parts = {phase: min(slowest.get(phase, 0.0), worked) for phase in ("prototypes", "client_state")}
    seconds = {**clock.seconds, "train": max(0.0, worked - sum(parts.values())), **parts}
    diverged, busy = excluded(reports), [report.total_seconds for report in reports if report.samples]
    return {
        "round": r.t,
        "accuracy": None,
        **(accuracies or {}),
        **metrics,
        **({"excluded": diverged} if diverged else {}),
        "cohort": list(cohort),
        **({"imbalance": round(max(busy) / fmean(busy), 4)} if busy and fmean(busy) else {}),
        "round_seconds": round(clock.total, 4),
        "seconds": {phase: round(value, 4) for phase, value in seconds.items()},
    }


def stop_where_asked(reports: Sequence[Report], r: Round) -> None:
    """Raises Stopped, agreed, where a signal asked for it and rounds are left; people count them from 1."""
    number = stop_asked(reports)
    if number and r.t + 1 < r.total:
        done = f"{signal.Signals(number).name} after round {r.t + 1} of {r.total}"
        raise Stopped(f"stopped by {done}; --resume goes on", agreed=True)


def evaluate(
    rank: Rank, store: RunStore, evaluator: Evaluator, mine: Sequence[int], t: int
) -> dict[str, Any] | None:
    """Both views of accuracy (`evaluation.accuracies`), on rank 0; None elsewhere. Collective.

    mine: this rank's clients of the round, whose models count where models are personal; after the last
    round, and where a validation set is used, all clients' do. None too where round t is not to be evaluated.
    """
    config, last = rank.config, t + 1 == rank.config.rounds
    if not last and (t + 1) % config.eval_every:
        return None
    return measure(rank, store, evaluator, rank.share_of_all() if last or rank.shards.val_set else mine)


def measure(
    rank: Rank, store: RunStore, evaluator: Evaluator, clients: Sequence[int]
) -> dict[str, Any] | None:
    """Both views of accuracy of the present model, on rank 0; None elsewhere. Collective.

    clients: those whose models this rank evaluates where models are personal.
    """

    def scores(z_BD: Tensor) -> Tensor | None:
        return rank.algorithm.prototype_scores(z_BD, rank.state.tensors())

    if rank.algorithm.personal:
        count = evaluator.count_personal if evaluator.name == "test" else evaluator.count_own
        counts = [count(store.personal_trainer(k), k, scores) for k in clients]
    else:
        rank.trainer.model.load(rank.state["model"], rank.state["counters"])
        counts = [evaluator.count(rank.trainer, scores)]
    of_all_ranks = rank.comm.collect(add_counts(counts))
    if of_all_ranks is None:
        return None
    prefix = "" if evaluator.name == "test" else f"{evaluator.name}_"
    return accuracies(add_counts(of_all_ranks), evaluator.sizes, prefix)


def bytes_a_round(rank: Rank) -> dict[str, int]:
    """What a rank gets in a round's broadcast, and what it sends in the reduce, in bytes."""
    sent = buffer_size(rank.algorithm.groups(rank.state, rank.trainer, rank.clients.sizes))
    return {"broadcast_bytes": rank.state.buffer.nbytes, "reduce_bytes": 8 * sent}


def peak_memory_mb() -> float:
    """The most memory that this process has held so far, in 10⁶ bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak * (1 if sys.platform == "darwin" else 1024) / 1e6, 1)


def evaluator(rank: Rank, held_out: HeldOut) -> Evaluator:
    """An evaluator on a held-out set."""
    return Evaluator(rank.clients, held_out, rank.trainer.block, rank.comm.rank, rank.comm.client_ranks)


def test_at_the_end(rank: Rank, store: RunStore) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the test set says, once, of the last model, and of the best one by validation. Collective.

    Both empty without a validation set, and on all ranks but rank 0. With one, the best has also its "round"
    and its validation accuracy.
    """
    if rank.shards.val_set is None:
        return {}, {}
    on_test, everyone = evaluator(rank, rank.shards.test_set), rank.share_of_all()
    final = best = measure(rank, store, on_test, everyone)
    with store.best_model() as which:
        if which == "another":
            best = measure(rank, store, on_test, everyone)
        elif which == "lost":
            best = {}
    line = best_line(store.lines)
    if final is None or best is None or line is None:
        return {}, {}
    return final, {**best, "round": line["round"], VALIDATED: line[VALIDATED]}
