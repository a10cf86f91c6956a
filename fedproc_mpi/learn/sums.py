"""Order-independent weighted sums: the same bits for every order, grouping and number of ranks (law 1).

One-fold pre-rounding (Demmel & Nguyen, "Fast Reproducible Floating-Point Summation", ARITH 2013, §3).
A term is (n·2^-s)·v with an integer weight n and 2^s ≥ Σn over the cohort: exact in float64 for a
float32 value v. Adding and subtracting C = 1.5·2^(52-q) rounds it to a multiple of 2^-q; sums of such
multiples below 2^(51-q) are exact in float64, and exact addition commutes and associates.

A tensor's range is 2^r, r = max(4, 10 + ceil(log2 max|v|)) from its values at the start of the round
(r = 16 where there are none yet), and q = 51 - r: a tensor of size 1 lies on a grid of 4.5e-13, one of
size 1e-5 on 7e-15. The mean of W (weights' sum) terms is off by at most
2^(s-q-1) before its final rounding to float32: for weights that all arrive, 2^s < 2·W, so the error is
below (number of clients)·2^-q for the model and for prototypes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

HEADROOM_BITS = 10
MIN_RANGE_BITS = 4  # however small a tensor is, a round may take it to ±16
FIRST_RANGE_BITS = 16
EXACT_INTEGERS = 2**53


@dataclass(frozen=True)
class Segment:
    """A named tensor inside a flat vector: [start, stop)."""

    label: str
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Group:
    """A set of tensors that share their weights.

    size: number of values; rows: number of weights (1: one for all; K: one for each of K rows of
    size/K values); total: an integer ≥ the sum of one row's weights over the cohort; reference: the
    values at the start of the round, which set each segment's range (None: none yet); integer: the
    values are integers, summed exactly, off the float grid.
    """

    size: int
    total: int
    segments: Sequence[Segment] = ()
    rows: int = 1
    reference: Tensor | None = None
    integer: bool = False


@dataclass(frozen=True)
class Term:
    """What one client adds to a group: values and integer weight(s). A row of weight 0 is ignored."""

    values: Tensor
    weight: int | Tensor


class Diverged(Exception):
    """A client's value is not finite, or outside its tensor's range. Nothing of it was added."""

    def __init__(self, client: int, tensor: str, value: float, limit: float) -> None:
        super().__init__(f"{tensor} reached {value:g} (range ±{limit:g})")
        self.client, self.tensor, self.value, self.limit = client, tensor, value, limit


def buffer_size(groups: Mapping[str, Group]) -> int:
    """How many float64 the sums of these groups take: their values and their rows' weights."""
    return sum(group.size + group.rows for group in groups.values())


class WeightedSums:
    """Sums of weighted tensors over clients in one float64 buffer, ready for one reduce.

    `buffer` holds, group by group, the scaled sums and then the rows' weights; adding two ranks'
    buffers adds their clients, exactly.
    """

    def __init__(self, groups: Mapping[str, Group], device: torch.device | str = "cpu") -> None:
        self.groups = dict(groups)
        self.buffer = torch.zeros(buffer_size(groups), dtype=torch.float64, device=device)
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, Tensor] = {}
        self._bits: dict[str, list[int]] = {}
        start = 0
        for name, group in self.groups.items():
            assert group.total < 2**29, "weights of 2^29 samples and more are not exact in float64"
            self._sums[name] = self.buffer[start : start + group.size]
            self._weights[name] = self.buffer[start + group.size : start + group.size + group.rows]
            self._bits[name] = [_range_bits(group, segment) for segment in self._segments(name)]
            start += group.size + group.rows

    def add(self, client: int, terms: Mapping[str, Term]) -> None:
        """Add one client's terms; all or nothing.

        Raises Diverged, naming client and tensor, when a value is out of range or not finite.
        """
        for name, term in terms.items():
            self._check(client, name, term)
        for name, term in terms.items():
            group, weight_R1 = self.groups[name], self._row_weights(name, term)
            self._weights[name] += weight_R1.view(-1)
            scale = 1.0 if group.integer else 2.0 ** -_scale_bits(group.total)
            for segment, bits in zip(self._segments(name), self._bits[name], strict=True):
                part = term.values.reshape(-1)[segment.start : segment.stop].to(torch.float64)
                part = (_used_rows(part.view(group.rows, -1), weight_R1) * (weight_R1 * scale)).view(-1)
                if not group.integer:
                    constant = 1.5 * 2.0 ** (bits + 1)  # 1.5·2^(52-q) with q = 51 - bits
                    part.add_(constant).sub_(constant)
                self._sums[name][segment.start : segment.stop] += part

    def weights(self, name: str) -> Tensor:
        """The sum of the weights that arrived, one per row (float64, whole numbers)."""
        return self._weights[name]

    def mean(self, name: str) -> Tensor:
        """The weighted mean, float32 (int64 for integer groups); rows without weight are 0."""
        group = self.groups[name]
        sums_RV = self._sums[name].view(group.rows, -1)
        weights_R1 = self._weights[name].view(-1, 1)
        safe_R1 = torch.where(weights_R1 > 0, weights_R1, 1.0)
        if group.integer:
            return (sums_RV / safe_R1).round().to(torch.int64).view(-1)
        return (sums_RV / (safe_R1 * 2.0 ** -_scale_bits(group.total))).to(torch.float32).view(-1)

    def _segments(self, name: str) -> Sequence[Segment]:
        group = self.groups[name]
        return group.segments or (Segment(name, 0, group.size),)

    def _row_weights(self, name: str, term: Term) -> Tensor:
        group = self.groups[name]
        weight = torch.as_tensor(term.weight, dtype=torch.float64, device=self.buffer.device)
        return weight.expand(group.rows).reshape(-1, 1)

    def _check(self, client: int, name: str, term: Term) -> None:
        group = self.groups[name]
        assert term.values.numel() == group.size, f"{name}: {term.values.numel()} values"
        if group.size == 0:
            return
        weight_R1 = self._row_weights(name, term)
        assert bool((weight_R1 >= 0).all() & (weight_R1 <= group.total).all()), f"{name}: weight"
        for segment, bits in zip(self._segments(name), self._bits[name], strict=True):
            part = term.values.reshape(-1)[segment.start : segment.stop].view(group.rows, -1)
            low, high = _used_rows(part, weight_R1).aminmax()
            worst = max(float(high), -float(low))  # aminmax hands NaN on to both
            limit = EXACT_INTEGERS / 2.0 ** _scale_bits(group.total) if group.integer else 2.0**bits
            if not worst <= limit:
                label = segment.label if segment.label.startswith(name) else f"{name} {segment.label}"
                raise Diverged(client, label, worst, limit)


def require_finite(client: int, segments: Sequence[Segment], vector: Tensor) -> None:
    """Raise Diverged, naming the tensor, where a vector that is not summed holds inf or NaN."""
    for segment in segments:
        low, high = vector[segment.start : segment.stop].aminmax()
        if not math.isfinite(worst := max(float(high), -float(low))):
            raise Diverged(client, segment.label, worst, torch.finfo(vector.dtype).max)


def _used_rows(values_RV: Tensor, weight_R1: Tensor) -> Tensor:
    """Rows of weight 0 may hold anything, infinities included."""
    return values_RV if len(values_RV) == 1 else torch.where(weight_R1 > 0, values_RV, 0.0)


def _scale_bits(total: int) -> int:
    """s: the least with 2^s ≥ total."""
    return max(total - 1, 0).bit_length()


def _range_bits(group: Group, segment: Segment) -> int:
    if group.reference is None or group.integer or segment.stop == segment.start:
        return FIRST_RANGE_BITS
    largest = float(group.reference.reshape(-1)[segment.start : segment.stop].abs().max())
    if largest == 0:
        return FIRST_RANGE_BITS
    assert math.isfinite(largest), f"{segment.label}: the state at the start of the round is not finite"
    return max(MIN_RANGE_BITS, HEADROOM_BITS + math.ceil(math.log2(largest)))
