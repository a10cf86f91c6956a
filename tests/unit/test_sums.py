"""Order-independent sums (law 1): any order, any grouping, against exact rational arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedproc_mpi.learn.sums import Diverged, Group, Segment, Term, WeightedSums, _range_bits, _scale_bits

SEGMENTS = (Segment("big", 0, 3), Segment("small", 3, 6))


def bits_of(sums: WeightedSums) -> bytes:
    return sums.buffer.numpy().tobytes()


@st.composite
def rounds(draw: st.DrawFn) -> tuple[torch.Tensor, list[torch.Tensor], list[int]]:
    """A reference state, and clients' values around it with weights."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    clients = draw(st.integers(1, 12))
    scale = torch.tensor([1.0] * 3 + [10.0 ** draw(st.integers(-6, 1))] * 3)
    reference = torch.from_numpy(rng.standard_normal(6).astype("f4")) * scale
    values = [torch.from_numpy(rng.standard_normal(6).astype("f4")) * scale for _ in range(clients)]
    weights = [int(n) for n in rng.integers(1, 5000, clients)]
    return reference, values, weights


def new_sums(reference: torch.Tensor, weights: list[int]) -> WeightedSums:
    return WeightedSums({"model": Group(size=6, total=sum(weights), segments=SEGMENTS, reference=reference)})


@settings(max_examples=150, deadline=None)
@given(rounds(), st.randoms(use_true_random=False))
def test_any_order_and_grouping_gives_the_same_bits(case: tuple, random: object) -> None:
    reference, values, weights = case
    whole = new_sums(reference, weights)
    for i, value in enumerate(values):
        whole.add(i, {"model": Term(value, weights[i])})
    order = list(range(len(values)))
    random.shuffle(order)
    ranks = [new_sums(reference, weights) for _ in range(random.randint(1, 4))]
    for i in order:
        random.choice(ranks).add(i, {"model": Term(values[i], weights[i])})
    random.shuffle(ranks)
    total = ranks[0]
    for rank in ranks[1:]:
        total.buffer += rank.buffer
    assert bits_of(total) == bits_of(whole)


@settings(max_examples=150, deadline=None)
@given(rounds())
def test_error_is_within_the_stated_bound(case: tuple) -> None:
    reference, values, weights = case
    sums = new_sums(reference, weights)
    for i, value in enumerate(values):
        sums.add(i, {"model": Term(value, weights[i])})
    mean = sums.mean("model")
    s = _scale_bits(sum(weights))
    for segment in SEGMENTS:
        q = 51 - _range_bits(sums.groups["model"], segment)
        for j in range(segment.start, segment.stop):
            terms = [Fraction(float(v[j])) * n for v, n in zip(values, weights, strict=True)]
            exact = sum(terms) / sum(weights)
            # each of the m terms is off by 2^-(q+1) at most, over W·2^-s; then half an ulp of float32
            bound = Fraction(len(values)) / 2 ** (q + 1) * Fraction(2**s, sum(weights))
            bound += Fraction(float(np.spacing(np.float32(abs(float(exact)))))) / 2
            # the division itself rounds in float64 before float32
            bound += abs(exact) / 2**52
            assert abs(Fraction(float(mean[j])) - exact) <= bound


def test_thousand_clients_at_the_edge_of_the_range_stay_exact() -> None:
    # reference 1 → range 2^10; every client at +1024 or, for the prototypes, at -1024 with weight 1
    edge = torch.tensor([1024.0, -1024.0])
    groups = {
        "model": Group(size=2, total=1000 * 4999, reference=torch.ones(2)),
        "prototypes": Group(size=2, total=1000, rows=2, reference=torch.ones(2)),
    }
    sums = WeightedSums(groups)
    for i in range(1000):
        ones = torch.ones(2, dtype=torch.int64)
        sums.add(i, {"model": Term(edge, 4999), "prototypes": Term(edge, ones)})
    # (Σ n·v)·2^-s: 1000·4999·1024 / 2^23 (2^23 ≥ 4,999,000) and 1000·1024 / 2^10
    assert sums._sums["model"].tolist() == [1000 * 4999 * 1024 / 2**23, -1000 * 4999 * 1024 / 2**23]
    assert sums._sums["prototypes"].tolist() == [1000.0, -1000.0]
    assert sums.mean("model").tolist() == [1024.0, -1024.0]
    assert sums.mean("prototypes").tolist() == [1024.0, -1024.0]


def test_thousand_random_clients_in_two_orders() -> None:
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.uniform(-1024, 1024, (1000, 4)).astype("f4"))
    group = {"prototypes": Group(size=4, total=1000, rows=4, reference=torch.ones(4))}
    forward, backward = WeightedSums(group), WeightedSums(group)
    for i in range(1000):
        forward.add(i, {"prototypes": Term(values[i], torch.ones(4))})
        backward.add(i, {"prototypes": Term(values[999 - i], torch.ones(4))})
    assert bits_of(forward) == bits_of(backward)


def test_integer_counters_are_exact() -> None:
    # (1·999,999 + 3·1,000,001) / 4 = 1,000,000.5 → 1,000,000 (round half to even); and equal stay equal
    sums = WeightedSums({"counters": Group(size=2, total=4, integer=True)})
    sums.add(0, {"counters": Term(torch.tensor([999_999, 10**6]), 1)})
    sums.add(1, {"counters": Term(torch.tensor([1_000_001, 10**6]), 3)})
    assert sums.mean("counters").tolist() == [1_000_000, 1_000_000]
    assert sums.mean("counters").dtype == torch.int64


def test_small_weights_lose_nothing_that_float32_averaging_keeps() -> None:
    rng = np.random.default_rng(1)
    weights = [int(n) for n in rng.integers(50, 500, 10)]
    values = [torch.from_numpy((1e-5 * rng.standard_normal(1000)).astype("f4")) for _ in range(10)]
    sums = WeightedSums({"model": Group(size=1000, total=sum(weights), reference=values[0])})
    plain = torch.zeros(1000)
    for i, value in enumerate(values):
        sums.add(i, {"model": Term(value, weights[i])})
        plain += value * (weights[i] / sum(weights))
    exact = np.sum([v.numpy().astype("f8") * n for v, n in zip(values, weights, strict=True)], 0)
    exact /= sum(weights)
    ours = np.abs(sums.mean("model").numpy() - exact)
    theirs = np.abs(plain.numpy() - exact)
    assert ours.max() <= theirs.max()
    assert ours.mean() <= theirs.mean()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1025.0, -1025.0])
def test_a_diverged_client_is_named_and_nothing_of_it_is_added(bad: float) -> None:
    reference = torch.ones(6)
    sums = WeightedSums(
        {
            "model": Group(size=6, total=30, segments=SEGMENTS, reference=reference),
            "losses": Group(size=1, total=30),
        }
    )
    sums.add(4, {"model": Term(torch.ones(6), 10), "losses": Term(torch.ones(1), 10)})
    before = bits_of(sums)
    value = torch.ones(6)
    value[4] = bad
    with pytest.raises(Diverged, match=r"^model small"):
        sums.add(7, {"losses": Term(torch.ones(1), 10), "model": Term(value, 10)})
    assert bits_of(sums) == before


def test_rows_of_weight_zero_are_ignored_whatever_they_hold() -> None:
    sums = WeightedSums({"prototypes": Group(size=4, total=3, rows=2)})
    held = torch.tensor([1, 0])
    sums.add(0, {"prototypes": Term(torch.tensor([2.0, 4.0, math.inf, 1e30]), held)})
    assert sums.mean("prototypes").tolist() == [2.0, 4.0, 0.0, 0.0]
    assert sums.weights("prototypes").tolist() == [1.0, 0.0]


def test_model_average_by_sizes_one_to_three() -> None:
    # (1·2 + 3·6) / 4 = 5; (1·-1 + 3·1) / 4 = 0.5
    sums = WeightedSums({"model": Group(size=2, total=4)})
    sums.add(0, {"model": Term(torch.tensor([2.0, -1.0]), 1)})
    sums.add(1, {"model": Term(torch.tensor([6.0, 1.0]), 3)})
    assert sums.mean("model").tolist() == [5.0, 0.5]
