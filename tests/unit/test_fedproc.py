"""FedProc's formulas on hand-sized cases. The expected numbers are worked out in the comments."""

import math

import pytest
import torch

from fedproc_mpi.algorithms.fedproc import FedProc, loss_gpc
from fedproc_mpi.learn.client import Batch, Round, Task
from fedproc_mpi.learn.flat import Entry, State
from fedproc_mpi.learn.sums import Group, Term, WeightedSums

# z = (3, 4) has length 5; cosines with c_0 = (1, 0), c_1 = (0, 2), c_2 = (-1, 0): 0.6, 0.8, -0.6.
Z = torch.tensor([[3.0, 4.0]])
PROTO = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
ALL = torch.tensor([True, True, True])
Y = torch.tensor([0])


@pytest.mark.parametrize(
    ("temperature", "twice", "expected"),
    [
        # e^0.6 = 1.8221188, e^0.8 = 2.2255409, e^-0.6 = 0.5488116: sum 4.5964713, ln 1.5252889; - 0.6
        (1.0, False, 0.9252889),
        # the positive once more: 4.5964713 + 1.8221188 = 6.4185901, ln 1.8591985; - 0.6
        (1.0, True, 1.2591985),
        # logits doubled: e^1.2 + e^1.6 + e^-1.2 = 3.3201169 + 4.9530324 + 0.3011942, ln 2.1487745; - 1.2
        (0.5, False, 0.9487745),
    ],
)
def test_loss_of_a_three_class_case(temperature: float, twice: bool, expected: float) -> None:
    assert loss_gpc(Z, Y, PROTO, ALL, temperature, twice).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("twice", [False, True])
def test_a_class_never_seen_is_masked_out(twice: bool) -> None:
    seen = torch.tensor([True, True, False])
    # once: ln(e^0.6 + e^0.8) - 0.6 = ln 4.0476597 - 0.6 = 0.7981389
    # twice: ln(4.0476597 + 1.8221188) - 0.6 = ln 5.8697785 - 0.6 = 1.1698170
    expected = 1.1698170 if twice else 0.7981389
    assert loss_gpc(Z, Y, PROTO, seen, 1.0, twice).item() == pytest.approx(expected, abs=1e-6)
    # A sample of the masked class adds 0; the mean is still over both samples.
    z_BD = torch.cat([Z, Z]).requires_grad_()
    loss = loss_gpc(z_BD, torch.tensor([0, 2]), PROTO, seen, 1.0, twice)
    assert loss.item() == pytest.approx(expected / 2, abs=1e-6)
    loss.backward()
    assert torch.isfinite(z_BD.grad).all()
    assert z_BD.grad[1].abs().max() == 0
    assert z_BD.grad[0].abs().max() > 0


def test_a_class_never_seen_may_be_a_zero_vector() -> None:
    """Its cosine is 0: ln(e^0.6 + e^0.8 + e^0) - 0.6 = ln 5.0476597 - 0.6 = 1.0189247; of its own samples the
    loss is ln 5.0476597 - 0 = 1.6189247."""
    proto_KD, y_B = PROTO.clone(), torch.tensor([0, 2])
    proto_KD[2] = 0
    state = {"prototypes": proto_KD, "seen": torch.tensor([True, True, False])}
    batch = Batch(torch.empty(2), y_B, torch.cat([Z, Z]), torch.zeros(2, 3))
    for reading, expected in (("masked", 0.7981389 / 2), ("zero", (1.0189247 + 1.6189247) / 2)):
        task = Task(None, state, {}, Round(0, 10), None)  # type: ignore[arg-type]
        weight, value = FedProc(unseen_class=reading).loss(batch, task)["gpc"]
        assert weight == 1
        assert value.item() == pytest.approx(expected, abs=1e-6)


def test_gradient_flows_into_z_and_not_into_prototypes() -> None:
    z_BD, proto_KD = Z.clone().requires_grad_(), PROTO.clone().requires_grad_()
    loss_gpc(z_BD, Y, proto_KD, ALL, 1.0).backward()
    # d/dθ of cos(θ - θ_k) with z at angle θ, sin θ = 0.8, cos θ = 0.6: the cosines' derivatives are
    # -0.8, 0.6, 0.8. softmax: 1.8221188, 2.2255409, 0.5488116 over 4.5964713. dL/dθ = Σ p_k·dcos_k + 0.8
    # = (-1.4576950 + 1.3353245 + 0.4390493) / 4.5964713 + 0.8 = 0.8688959; along (-0.8, 0.6) / |z| = 5.
    expected = 0.8688959 / 5 * torch.tensor([[-0.8, 0.6]])
    torch.testing.assert_close(z_BD.grad, expected, atol=1e-6, rtol=0)
    assert proto_KD.grad is None


def test_alpha() -> None:
    # 1 - t/T for T = 20: t = 0, 1, T - 1
    for t, expected in ((0, 1.0), (1, 0.95), (19, 0.05)):
        assert FedProc().alpha_at(Round(t, 20)) == pytest.approx(expected)
    assert FedProc(alpha_schedule="over100").alpha_at(Round(1, 20)) == pytest.approx(0.99)
    assert FedProc(alpha_schedule="over100").alpha_at(Round(150, 200)) == 0
    assert FedProc(alpha_schedule="reverse").alpha_at(Round(19, 20)) == pytest.approx(0.95)
    assert FedProc(alpha_schedule="constant", alpha=0.3).alpha_at(Round(7, 20)) == 0.3
    assert FedProc(first_round="cross_entropy").alpha_at(Round(0, 20)) == 0
    assert FedProc(first_round="cross_entropy").alpha_at(Round(1, 20)) == pytest.approx(0.95)


# Two clients, four classes, D = 1. Client A (3 samples of class 0): mean 2. Client B (1 of class 0, 2 of
# class 1): means 6 and 8. Class 2: no participant holds it, prototype 7 from before. Class 3: never seen.
MEANS = {0: [2.0, 0.0, 0.0, 0.0], 1: [6.0, 8.0, 0.0, 0.0]}
COUNTS = {0: [3, 0, 0, 0], 1: [1, 2, 0, 0]}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [4.0, 8.0, 7.0, 0.0]),  # (2 + 6) / 2; 8 / 1; kept
        ({"prototype_average": "all"}, [4.0, 4.0, 7.0, 0.0]),  # (2 + 6) / 2; (0 + 8) / 2; kept
        ({"prototype_average": "count"}, [3.0, 8.0, 7.0, 0.0]),  # (3·2 + 1·6) / 4; 2·8 / 2; kept
        ({"absent_class": "zeros"}, [4.0, 8.0, 0.0, 0.0]),
    ],
)
def test_prototype_average(options: dict, expected: list[float]) -> None:
    algorithm = FedProc(**options)
    state = State({"prototypes": Entry((4, 1)), "seen": Entry((4,), torch.bool)})
    state["prototypes"][2] = 7
    state["seen"][2] = True
    sums = WeightedSums({"prototypes": Group(size=4, total=6, rows=4)})
    for client in (0, 1):
        counts_K = torch.tensor(COUNTS[client])
        weights = {"holders": (counts_K > 0).long(), "all": torch.ones(4), "count": counts_K}
        weight_K = weights[algorithm.prototype_average]
        sums.add(client, {"prototypes": Term(torch.tensor(MEANS[client]), weight_K)})
    algorithm._average(state, sums)
    assert state["prototypes"].flatten().tolist() == expected
    assert state["seen"].tolist() == [True, True, True, False]


def test_author_preset_differs_from_paper_where_facts_say_so() -> None:
    from fedproc_mpi.cli import parse

    paper, author = parse(["--preset", "paper"]), parse(["--preset", "author_code"])
    assert paper == parse([])
    differing = {k for k, v in author.flat().items() if v != paper.flat()[k]}
    assert differing == {
        *("lr", "normalize_z", "last_batch", "first_round"),
        *("alpha_schedule", "prototype_average", "prototype_init", "unseen_class", "class_means", "means_of"),
    }
    assert math.isclose(author.lr, 0.1)
