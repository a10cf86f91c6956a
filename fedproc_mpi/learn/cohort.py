"""Who trains in a round, and on which rank. The result depends on the first alone."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from fedproc_mpi.learn.seeds import numpy_generator

SPEED_STEP = math.sqrt(2)  # speeds count in these steps, so that noise moves no client to another rank


def cohort_size(num_clients: int, sample_rate: float) -> int:
    """γ·m, rounded; 0 when the rate is too small to draw anyone."""
    return round(num_clients * sample_rate)


def sample_cohort(num_clients: int, sample_rate: float, seed: int, t: int) -> list[int]:
    """The clients of round t in ascending order, drawn without replacement; the same on every rank."""
    size = cohort_size(num_clients, sample_rate)
    if size == num_clients:
        return list(range(num_clients))
    drawn = numpy_generator(seed, "cohort", t).choice(num_clients, size, replace=False)
    return sorted(int(i) for i in drawn)


def assign(
    cohort: Sequence[int], sizes: Sequence[int], ranks: Sequence[int], speeds: Sequence[float] = ()
) -> Mapping[int, list[int]]:
    """Rank → its clients, none for a rank that does not train: largest first to the rank that would be
    done first (LPT).

    sizes: |D_i| by client; speeds: relative, one for each of `ranks` (default: all alike).
    """
    speeds = speeds or [1.0] * len(ranks)
    work = dict.fromkeys(ranks, 0.0)
    plan: dict[int, list[int]] = defaultdict(list, {rank: [] for rank in ranks})
    speed_of = dict(zip(ranks, speeds, strict=True))
    for client in sorted(cohort, key=lambda i: (-sizes[i], i)):
        rank = min(ranks, key=lambda r: (work[r] + sizes[client] / speed_of[r], r))
        work[rank] += sizes[client] / speed_of[rank]
        plan[rank].append(client)
    return plan


class Speeds:
    """A running estimate of each client rank's speed; the same on every rank, from the same reports."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._samples_per_second: dict[int, float] = {}

    def observe(self, rank: int, samples: int, seconds: float) -> None:
        """Take in what a rank did in a round."""
        if samples and seconds > 0:
            new = samples / seconds
            self._samples_per_second[rank] = 0.7 * self._samples_per_second.get(rank, new) + 0.3 * new

    def relative(self) -> list[float]:
        """Speeds relative to the median, in steps; ranks not yet measured count as the median."""
        middle = median(self._samples_per_second.values() or [1.0])
        ratios = [self._samples_per_second.get(rank, middle) / middle for rank in self._ranks]
        return [SPEED_STEP ** round(math.log(ratio, SPEED_STEP)) for ratio in ratios]
