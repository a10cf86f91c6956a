"""The algorithms' formulas on hand-sized cases (numbers worked out in the comments), and what they fall
back to."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fedproc_mpi import Config, UserError, algorithms, run
from fedproc_mpi.algorithms.fedavg import FedAvg
from fedproc_mpi.algorithms.fedproto import FedProto, loss_proto
from fedproc_mpi.algorithms.fedprox import FedProx
from fedproc_mpi.algorithms.moon import Moon, loss_con
from fedproc_mpi.algorithms.scaffold import Scaffold, effective_steps
from fedproc_mpi.algorithms.solo import Solo
from fedproc_mpi.flags import flag
from fedproc_mpi.learn.client import Batch, Round, Task, Tensors, Trainer
from fedproc_mpi.learn.data import ClientData
from fedproc_mpi.learn.flat import Entry, FlatModel, State
from fedproc_mpi.learn.sums import Diverged, Term, WeightedSums
from tests.support.cases import SMALL
from tests.support.small_models import WithBatchNorm
from tests.unit.test_client import PlainBatches


class Line(nn.Module):
    """Two classes, one weight each: z = (x, x), logits = (w0·x, w1·x); starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 2, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x_B1 = x_BCHW.flatten(1)
        return x_B1.expand(-1, 2), self.linear(x_B1)


class Ray(Line):
    """The same with z = logits = (w0·x, w1·x)."""

    def forward(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _, z_BD = super().forward(x_BCHW)
        return z_BD, z_BD


def line_trainer(model: type[Line] = Line, **config: object) -> Trainer:
    """Two epochs of one batch at lr 1: two steps."""
    plain = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "local_epochs": 2} | config
    return Trainer(Config.create(**plain), FlatModel(model()), PlainBatches(), 2, 2)


ONE = ClientData(0, torch.ones(1, 1, 1, 1, dtype=torch.uint8), torch.tensor([0]))  # x = 1 of class 0


def task(trainer: Trainer, state: State, r: Round, kept: Tensors) -> Task:
    return Task(ONE, state.tensors(), kept, r, trainer)


def start_state(algorithm: algorithms.Algorithm, trainer: Trainer) -> State:
    model = trainer.model
    entries = {"model": Entry((2,)), "counters": Entry((0,), torch.int64)}
    state = State(entries | algorithm.entries(trainer))
    state["model"].copy_(model.vector_S)
    return state


def test_fedprox_adds_mu_times_the_distance_to_the_gradient() -> None:
    # At w = 0 the softmax is (1/2, 1/2) and the gradient (-0.5, 0.5): w = (0.5, -0.5).
    # Then p0 = 1/(1+e^-1) = 0.7310586, gradient of w0: -0.2689414 + 0.5·(0.5 - 0) = -0.0189414.
    trainer = line_trainer()
    algorithm = FedProx(mu=0.5)
    state = start_state(algorithm, trainer)
    terms, kept = algorithm.client_update(task(trainer, state, Round(0, 1), {}))
    assert not kept
    assert terms["model"].values.tolist() == pytest.approx([0.5189414, -0.5189414], abs=1e-6)
    # Losses: ln 2 and -ln 0.7310586 = 0.3132617; |w - w_t|² = 0 and 0.5; the means over two samples.
    total, ce, proximal = terms["losses"].values.tolist()
    assert ce == pytest.approx((0.6931472 + 0.3132617) / 2, abs=1e-6)
    assert proximal == pytest.approx(0.25, abs=1e-6)
    assert total == pytest.approx(ce + 0.25 * 0.25, abs=1e-6)


def test_scaffold_corrects_the_gradient_and_updates_the_clients_variate() -> None:
    # c = (0.1, -0.1), c_i = (0.3, -0.3): the correction of w0 is -0.2. w0 = 0.7 after the first step;
    # p0 = 1/(1+e^-1.4) = 0.8021839: gradient -0.1978161 - 0.2, w0 = 1.0978161.
    # c_i⁺ = 0.3 - 0.1 - 1.0978161/2 = -0.3489081: the mean of the gradients -0.5 and -0.1978161.
    trainer, algorithm = line_trainer(), Scaffold()
    state = start_state(algorithm, trainer)
    state["control"].copy_(torch.tensor([0.1, -0.1]))
    before = torch.tensor([0.3, -0.3])
    terms, kept = algorithm.client_update(task(trainer, state, Round(0, 1), {"control": before}))
    assert terms["model"].values.tolist() == pytest.approx([1.0978161, -1.0978161], abs=1e-6)
    assert kept["control"].tolist() == pytest.approx([-0.3489081, 0.3489081], abs=1e-6)
    assert terms["control"].values.tolist() == pytest.approx([-0.6489081, 0.6489081], abs=1e-6)
    assert before.tolist() == pytest.approx([0.3, -0.3])  # replaced, not changed in place


class Tilted(Scaffold):
    """The loss is w0·x - w1·x: the gradient is (1, -1) at every step."""

    def loss(self, batch: Batch, task: Task) -> dict:
        return {"ce": (1.0, (batch.logits_BK[:, 0] - batch.logits_BK[:, 1]).mean())}


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_scaffolds_variate_is_the_gradient_whatever_the_momentum(momentum: float) -> None:
    trainer = line_trainer(momentum=momentum, local_epochs=3, lr=0.25)
    state = start_state(Tilted(), trainer)
    _, kept = Tilted().client_update(task(trainer, state, Round(0, 1), {}))
    assert kept["control"].tolist() == pytest.approx([1.0, -1.0], abs=1e-6)


def test_effective_steps_follow_the_published_form() -> None:
    # ρ = 0.5: the velocities are 1, 1.5, 1.75; their sum is 4.25
    assert effective_steps(3, 0.5) == 4.25
    assert effective_steps(7, 0.0) == 7
    rho, steps = 0.9, 40
    published = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    assert effective_steps(steps, rho) == pytest.approx(published)


def test_scaffolds_server_moves_c_by_the_share_that_took_part() -> None:
    # two of m = 4 clients bring (1, 0) and (3, 1): c = (0.5, 0) + 2/4·(2, 0.5) = (1.5, 0.25)
    trainer, algorithm = line_trainer(), Scaffold()
    state = start_state(algorithm, trainer)
    state["control"].copy_(torch.tensor([0.5, 0.0]))
    r = Round(0, 1, num_clients=4)
    sums = WeightedSums(algorithm.groups(state, trainer, [1, 1]))
    empty = torch.zeros(0, dtype=torch.int64)
    for k, change in enumerate([[1.0, 0.0], [3.0, 1.0]]):
        terms = {"model": Term(torch.zeros(2), 1), "counters": Term(empty, 1)}
        sums.add(k, {**terms, "control": Term(torch.tensor(change), 1)})
    algorithm.server_update(state, sums, r)
    assert state["control"].tolist() == [1.5, 0.25]


def test_moons_loss() -> None:
    # z = (1, 0): cosines 0.6 with (3, 4) and 0 with (0, 2); over τ = 0.5: 1.2 and 0.
    # -ln(e^1.2 / (e^1.2 + e^0)) = ln(1 + e^-1.2) = ln 1.3011942 = 0.2632825
    near, far = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])
    z = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = loss_con(z, near, far, 0.5)
    assert loss.item() == pytest.approx(0.2632825, abs=1e-6)
    loss.backward()
    # along (0, 1) the cosines grow by 0.8 and 1: (1 - 0.8)/0.5 / (1 + e^1.2) = 0.4·0.2314752 = 0.0925901
    assert z.grad is not None
    assert z.grad[0, 1].item() == pytest.approx(0.0925901, abs=1e-6)
    # one model is like the other: ln 2
    assert loss_con(z, near, near, 0.5).item() == pytest.approx(math.log(2), abs=1e-6)


def test_moons_term_is_0_in_a_clients_first_round_and_not_later() -> None:
    trainer, algorithm = line_trainer(), Moon()
    state = start_state(algorithm, trainer)
    first, kept = algorithm.client_update(task(trainer, state, Round(3, 5), {}))
    plain, _ = FedAvg().client_update(task(line_trainer(), state, Round(3, 5), {}))
    assert torch.equal(first["model"].values, plain["model"].values)
    assert first["losses"].values[2] == 0
    kept = {name: tensor.clone() for name, tensor in kept.items()}
    second, _ = algorithm.client_update(task(trainer, state, Round(4, 5), kept))
    # here z does not depend on the weights, so all three models agree: ln 2
    assert second["losses"].values[2].item() == pytest.approx(math.log(2), abs=1e-6)


NO_COUNTERS = torch.zeros(0, dtype=torch.int64)


def test_moon_pulls_to_the_global_model_away_from_the_previous_one_and_keeps_the_trained() -> None:
    # w_t = (1, 0), previous (0, 1); z starts at (1, 0): cosines 1 and 0, over τ = 0.5 2 and 0.
    # ln(1 + e^-2) = 0.1269280 (exchanged: ln(1 + e^2) = 2.1269280); along w1 the far cosine grows by 1:
    # 1/0.5 / (1 + e^2) = 0.2384058. Cross-entropy: p0 = 1/(1+e^-1) = 0.7310586, gradient ∓0.2689414.
    trainer, algorithm = line_trainer(Ray, local_epochs=1), Moon(mu=1.0)
    state = start_state(algorithm, trainer)
    state["model"].copy_(torch.tensor([1.0, 0.0]))
    previous = {"model": torch.tensor([0.0, 1.0]), "counters": NO_COUNTERS}
    terms, kept = algorithm.client_update(task(trainer, state, Round(4, 5), previous))
    total, ce, contrastive = terms["losses"].values.tolist()
    assert (ce, contrastive) == pytest.approx((0.3132617, 0.1269280), abs=1e-6)
    assert total == pytest.approx(0.3132617 + 0.1269280, abs=1e-6)
    trained = [1.2689414, -0.2689414 - 0.2384058]
    assert terms["model"].values.tolist() == pytest.approx(trained, abs=1e-6)
    assert kept["model"].tolist() == pytest.approx(trained, abs=1e-6)
    assert state["model"].tolist() == [1.0, 0.0]


def test_fedproto_pulls_z_to_the_prototype_and_sends_the_trained_models_means() -> None:
    # w = (1, 0), prototype of class 0 at the origin, λ = 0.5: MSE 0.5, its gradient z = (1, 0) times λ.
    # Cross-entropy as above: w = (1 - 0.5 + 0.2689414, -0.2689414). z of the one sample is then w itself.
    trainer, algorithm = line_trainer(Ray, local_epochs=1), FedProto(lam=0.5)
    state = State(algorithm.entries(trainer))
    state["prototypes"].copy_(torch.tensor([[0.0, 0.0], [5.0, 5.0]]))
    state["seen"].copy_(torch.tensor([True, False]))
    own = {"model": torch.tensor([1.0, 0.0]), "counters": NO_COUNTERS}
    terms, kept = algorithm.client_update(task(trainer, state, Round(1, 2), own))
    assert set(terms) == {"losses", "prototypes"}
    assert terms["losses"].values.tolist() == pytest.approx([0.5632617, 0.3132617, 0.5], abs=1e-6)
    assert kept["model"].tolist() == pytest.approx([0.7689414, -0.2689414], abs=1e-6)
    assert terms["prototypes"].values[0].tolist() == pytest.approx([0.7689414, -0.2689414], abs=1e-6)
    assert terms["prototypes"].weight.tolist() == [1, 0]


def test_batchnorm_is_averaged_by_sample_count_and_has_no_variates() -> None:
    # 1 sample at 1 and 3 samples at 5: (1 + 15)/4 = 4; counters (7 + 33)/4 = 10
    module = WithBatchNorm((2, 2, 1), 2)
    trainer = Trainer(Config.create(), FlatModel(module), PlainBatches(), 2, 16)
    model, algorithm = trainer.model, Scaffold()
    entries = {"model": Entry(tuple(model.vector_S.shape)), "counters": Entry((1,), torch.int64)}
    state = State(entries | algorithm.entries(trainer))
    assert len(state["control"]) == sum(p.numel() for p in module.parameters())
    assert len(state["model"]) == len(state["control"]) + 2 * 4
    r = Round(0, 1, num_clients=2)
    sums = WeightedSums(algorithm.groups(state, trainer, [1, 3]))
    for k, (value, counter, n) in enumerate([(1.0, 7, 1), (5.0, 11, 3)]):
        terms = {
            "model": Term(torch.full_like(model.vector_S, value), n),
            "counters": Term(torch.tensor([counter]), n),
            "losses": Term(torch.zeros(2), n),
        }
        sums.add(k, terms | {"control": Term(torch.zeros_like(state["control"]), 1)})
    algorithm.server_update(state, sums, r)
    model.load(state["model"], state["counters"])
    norm = module.encoder[1]
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_mean.tolist() == [4.0] * 4
    assert norm.num_batches_tracked == 10


def test_fedprotos_loss_is_the_mse_over_batch_and_width() -> None:
    # (1-0)² + (2-0)² = 5 over 2 samples × 2 values = 1.25; class 2 has no prototype and adds 0
    z = torch.tensor([[1.0, 2.0], [7.0, 7.0]], requires_grad=True)
    proto, seen = torch.zeros(3, 2), torch.tensor([True, True, False])
    loss = loss_proto(z, torch.tensor([0, 2]), proto, seen)
    assert loss.item() == 1.25
    loss.backward()
    assert z.grad is not None
    assert z.grad.tolist() == [[0.5, 1.0], [0.0, 0.0]]
    assert loss_proto(z, torch.tensor([0, 2]), proto, torch.zeros(3, dtype=torch.bool)).item() == 0


def test_fedproto_tells_the_class_by_the_nearest_prototype() -> None:
    state = State({"prototypes": Entry((3, 2)), "seen": Entry((3,), torch.bool)})
    state["prototypes"].copy_(torch.tensor([[0.0, 0.0], [1.0, 2.0], [1.0, 1.0]]))
    state["seen"].copy_(torch.tensor([True, True, False]))
    # (1, 1): √2 from class 0, 1 from class 1, and class 2 was never seen; (-1, 0): 1 and √8
    scores = FedProto().prototype_scores(torch.tensor([[1.0, 1.0], [-1.0, 0.0]]), state.tensors())
    assert scores.argmax(1).tolist() == [1, 0]
    assert scores[0, :2].tolist() == pytest.approx([-math.sqrt(2), -1.0])


def test_fedprotos_server_averages_over_holders_and_keeps_what_nobody_holds() -> None:
    trainer, algorithm = line_trainer(), FedProto()
    state = State(algorithm.entries(trainer))
    state["prototypes"].copy_(torch.tensor([[9.0, 9.0], [5.0, 6.0]]))
    r = Round(1, 2)
    sums = WeightedSums(algorithm.groups(state, trainer, [10, 30]))
    losses = Term(torch.zeros(3), 1)
    for k, row in enumerate([[1.0, 2.0], [3.0, 6.0]]):
        means = torch.tensor([row, [0.0, 0.0]])
        sums.add(k, {"losses": losses, "prototypes": Term(means, torch.tensor([1, 0]))})
    algorithm.server_update(state, sums, r)
    assert state["prototypes"].tolist() == [[2.0, 4.0], [5.0, 6.0]]  # uniform, not by |D_i|
    assert state["seen"].tolist() == [True, False]


def test_solo_goes_on_with_its_own_model_and_notices_that_it_diverged() -> None:
    trainer, algorithm = line_trainer(local_epochs=1), Solo()
    state = State({})
    own = {"model": torch.tensor([0.5, -0.5]), "counters": torch.zeros(0, dtype=torch.int64)}
    terms, kept = algorithm.client_update(task(trainer, state, Round(0, 1), own))
    assert set(terms) == {"losses"}
    assert kept["model"].tolist() == pytest.approx([0.7689414, -0.7689414], abs=1e-6)
    own["model"] = torch.tensor([math.inf, 0.0])
    with pytest.raises(Diverged, match=r"^linear\.weight"):
        algorithm.client_update(task(trainer, state, Round(1, 2), own))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedprox", {"mu": -1.0}, "--mu must be at least 0"),
        ("moon", {"temperature": 0.0}, "--temperature must be above 0"),
        ("fedproto", {"lam": math.nan}, "--lam must be at least 0"),
        ("fedproto", {"client_models": "a,,b"}, "an empty name"),
    ],
)
def test_wrong_options(name: str, options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        algorithms.build(name, options)
    assert flag(next(iter(options))) in words or "--" not in words


def test_client_models_need_one_width_of_z(shards: Path, tmp_path: Path) -> None:
    models = "small-cnn,tests.support.small_models:Normed"
    config = Config.create(
        algorithm="fedproto", client_models=models, shards=str(shards), run_dir=str(tmp_path)
    )
    with pytest.raises(UserError, match="z has 16 values, the first client's has 256"):
        run(config)


def quick(shards: Path, run_dir: Path, **options: object) -> dict:
    result = run(Config.create(shards=str(shards), run_dir=str(run_dir), **SMALL, **options))
    assert result is not None
    return result.summary


def test_degenerate_cases_are_fedavg_bit_by_bit(shards: Path, tmp_path: Path) -> None:
    cases = [
        {"algorithm": "fedavg"},
        {"algorithm": "fedprox", "mu": 0.0},
        {"algorithm": "moon", "mu": 0.0},
        {"algorithm": "fedproc", "alpha_schedule": "constant", "alpha": 0.0},
        {"algorithm": "fedavg", "seed": 1},
        {"algorithm": "fedprox"},
    ]
    hashes = [quick(shards, tmp_path / str(i), **case)["weights_sha256"] for i, case in enumerate(cases)]
    assert len(set(hashes[:4])) == 1
    assert len(set(hashes[3:])) == 3


def test_scaffolds_c_is_the_mean_of_the_c_i_after_full_participation(shards: Path, tmp_path: Path) -> None:
    small = {**SMALL, "sample_rate": 1.0, "rounds": 2}
    run(Config.create(algorithm="scaffold", shards=str(shards), run_dir=str(tmp_path / "r"), **small))
    kept = [torch.load(path)["control"] for path in (tmp_path / "r" / "clients").glob("*_round00001.pt")]
    assert len(kept) == 5
    control = torch.load(tmp_path / "r" / "checkpoint.pt")["state"]["control"]
    assert control.abs().max() > 1e-3
    torch.testing.assert_close(control, torch.stack(kept).mean(0), atol=1e-6, rtol=1e-5)
