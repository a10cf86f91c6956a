"""The α–β model of a tree of messages, fitted to measured ones: L·(α + β·n) for n bytes, L = ⌈log2 P⌉ steps.

Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 2005.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from fedproc_mpi.errors import UserError


@dataclass(frozen=True)
class Sample:
    """A measured message: ranks P, bytes n, seconds."""

    ranks: int
    size: int
    seconds: float


@dataclass(frozen=True)
class Fit:
    """Seconds per step and per byte. error: mean relative error on samples that the fit has not seen."""

    alpha: float
    beta: float
    error: float

    def seconds(self, ranks: int, size: float) -> float:
        """Of one operation over so many ranks; 0 for one rank."""
        return steps(ranks) * (self.alpha + self.beta * size)


def steps(ranks: int) -> int:
    """L: the depth of the tree."""
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0


def fit(samples: Sequence[Sample]) -> Fit:
    """Least squares of relative errors, α and β at least 0. Every second size is kept for the error.

    Raises ValueError for fewer than four samples.
    """
    if len(samples) < 4:
        raise ValueError("four samples at least: two to fit, two to see how well")
    sizes = sorted({sample.size for sample in samples})
    unseen = set(sizes[1::2])
    seen = [sample for sample in samples if sample.size not in unseen]
    alpha, beta = _solve(seen)
    trial = Fit(alpha, beta, 0.0)
    errors = [abs(trial.seconds(s.ranks, s.size) / s.seconds - 1) for s in samples if s.size in unseen]
    return Fit(alpha, beta, fmean(errors))


def _solve(samples: Sequence[Sample]) -> tuple[float, float]:
    from scipy.optimize import nnls  # here: it takes a second

    # Bytes in MiB keep the two columns alike in size.
    rows = [[steps(s.ranks) / s.seconds, steps(s.ranks) * s.size / 2**20 / s.seconds] for s in samples]
    (alpha, beta), _ = nnls(np.array(rows), np.ones(len(rows)))
    return float(alpha), float(beta) / 2**20


def read_samples(files: Sequence[Path]) -> dict[str, list[Sample]]:
    """Operation → the medians of what `messages` measured. UserError for a damaged file."""
    found: dict[str, list[Sample]] = {}
    for path in files:
        try:
            facts: Mapping[str, Any] = json.loads(path.read_text())
            for operation, by_size in facts["seconds"].items():
                found.setdefault(operation, []).extend(
                    Sample(int(facts["ranks"]), int(size), median(seconds))
                    for size, seconds in by_size.items()
                )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: no measured messages: {error}; delete it to measure again") from error
    return found
