"""The round loop (FedProc Algorithm 1), and a run from config to summary."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from fedproc_mpi import steps
from fedproc_mpi.clock import Clock
from fedproc_mpi.comm import Comm
from fedproc_mpi.comm.serial import SerialComm
from fedproc_mpi.config import Config
from fedproc_mpi.errors import FedprocError, UserError
from fedproc_mpi.learn.client import Round
from fedproc_mpi.learn.cohort import assign, sample_cohort
from fedproc_mpi.learn.sums import WeightedSums
from fedproc_mpi.placement.devices import restored_settings
from fedproc_mpi.progress import Show, setting_up, shower
from fedproc_mpi.rank import Rank, set_up
from fedproc_mpi.store.run import Result, RunStore

__all__ = ["Result", "run"]
_RUNNING = threading.Lock()


def rounds(rank: Rank, store: RunStore, signals: steps.StopSignals, show: Show) -> None:
    """Rounds first_round … T-1. Collective. Raises TrainingFailed or Stopped, agreed."""
    config, comm, algorithm, state, clients = rank.config, rank.comm, rank.algorithm, rank.state, rank.clients
    evaluator = steps.evaluator(rank, rank.shards.val_set or rank.shards.test_set)
    for t in range(store.first_round, config.rounds):  # Alg. 1 l.4
        if store.ended_early():
            break
        clock, r = Clock(), Round(t, config.rounds, len(clients))
        cohort = sample_cohort(len(clients), config.sample_rate, config.seed, t)
        mine = assign(cohort, clients.sizes, comm.client_ranks, rank.speeds.relative())[comm.rank]
        sums = WeightedSums(algorithm.groups(state, rank.trainer, clients.sizes_of(cohort)), rank.device)
        reports = comm.exchange(steps.train(rank, store, mine, sums, r, signals))  # l.7-8, in parallel
        clock.mark("train")
        steps.settle(rank, store, reports, cohort, t)
        comm.reduce(sums.buffer)  # l.9-10: the sums …
        clock.mark("reduce")
        if comm.rank == 0:
            algorithm.server_update(state, sums, r)  # … and the division
        clock.mark("server")
        comm.broadcast(state.buffer)  # l.5-6 of the next round
        clock.mark("broadcast")
        accuracies = steps.evaluate(rank, store, evaluator, mine, t)
        clock.mark("evaluate")
        if comm.rank == 0:
            line = steps.round_line(r, cohort, reports, accuracies, algorithm.metrics(sums, r), clock)
            show(store.save(line, stopping=steps.stop_asked(reports) > 0))
        steps.stop_where_asked(reports, r)


def run(config: Config, comm: Comm | None = None) -> Result | None:
    """Run a config to its end. Collective over `comm` (default: this process alone).

    Returns the result on rank 0, None on the others. Raises UserError, TrainingFailed, Stopped.
    """
    given = comm or SerialComm()
    with _alone_in_this_process(), restored_settings():
        setting_up(config, given)
        rank = set_up(config, given)
        # To the end: a signal must not end a rank that others wait for.
        with closing(rank.shards), steps.StopSignals() as signals:
            try:
                result = _run(rank, signals)
            except FedprocError as error:
                if error.agreed:  # all ranks are here; after any other error the job is aborted as it stands
                    rank.close(given)
                raise
            rank.close(given)
            return result


@contextmanager
def _alone_in_this_process() -> Iterator[None]:
    """torch has one generator per process: two runs in two threads would draw from each other's."""
    if not _RUNNING.acquire(blocking=False):
        raise UserError(
            "another run is under way in this process; wait for it, or start a process for this one"
        )
    try:
        yield
    finally:
        _RUNNING.release()


def _run(rank: Rank, signals: steps.StopSignals) -> Result | None:
    with closing(RunStore(rank)) as store:
        if store.finished:
            return store.finished_result()
        signals.told = store.saved_so_far
        show = shower(rank, store)
        steps.start_state(rank, store)
        cpu, wall = time.process_time(), time.perf_counter()
        rounds(rank, store, signals, show)
        final, best = steps.test_at_the_end(rank, store)
        cpu_share = (time.process_time() - cpu) / max(time.perf_counter() - wall, 1e-9)
        memory = rank.comm.collect(steps.peak_memory_mb())
        return store.finish(
            final,
            best,
            deterministic=rank.config.deterministic,
            ranks=rank.comm.size,
            transport=rank.comm.name,
            server_cpu_share=round(cpu_share, 4),
            peak_memory_mb=memory,
            **steps.bytes_a_round(rank),
        )
