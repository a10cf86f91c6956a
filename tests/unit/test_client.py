"""Local training and class means against numbers and against torch's own optimizer."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedproc_mpi.config import Config
from fedproc_mpi.errors import UserError
from fedproc_mpi.learn.client import Batch, Round, Task, Trainer, balanced_weights, lr_factor
from fedproc_mpi.learn.data import Batches, ClientData, Clients, Normalise, cuts
from fedproc_mpi.learn.flat import FlatModel
from fedproc_mpi.learn.models import build_model
from fedproc_mpi.learn.seeds import torch_generator
from fedproc_mpi.shards import Shards


class Identity2(nn.Module):
    """z = the image's two pixels after BatchNorm in the caller's mode; logits from z."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2, affine=False, eps=1e-12)
        self.linear = nn.Linear(2, 3)

    def forward(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z_BD = self.norm(x_BCHW.flatten(1))
        return z_BD, self.linear(z_BD)


class PlainBatches(Batches):
    """No normalisation, no augmentation."""

    def __init__(self) -> None:
        self.augment = "none"
        self.normalise = Normalise([0.0], [1 / 255])


def trainer_of(module: nn.Module, **config: object) -> Trainer:
    return Trainer(Config.create(**config), FlatModel(module), PlainBatches(), 3, 2)


def start_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {"model": trainer.model.vector_S.clone(), "counters": trainer.model.counters_N.clone()}


def keep(grad_P: torch.Tensor, w_P: torch.Tensor) -> None:
    """No correction of the gradient."""


def cross_entropy(batch: Batch) -> dict:
    return {"ce": (1.0, F.cross_entropy(batch.logits_BK, batch.y_B))}


def test_class_means_are_in_eval_mode_over_all_samples() -> None:
    trainer = trainer_of(Identity2(), batch_size=2)
    # Running statistics at their start (mean 0, variance 1): in eval mode z is the pixels themselves.
    pixels = torch.tensor([[1, 2], [3, 4], [10, 20], [5, 6], [7, 8]], dtype=torch.uint8)
    data = ClientData(0, pixels.view(5, 1, 1, 2), torch.tensor([0, 0, 2, 0, 2]))
    trainer.model.module.train()
    means_KD, counts_K = trainer.class_means(data)
    # class 0: (1+3+5)/3 = 3, (2+4+6)/3 = 4; class 1: none; class 2: (10+7)/2 = 8.5, (20+8)/2 = 14
    assert means_KD.tolist() == [[3.0, 4.0], [0.0, 0.0], [8.5, 14.0]]
    assert counts_K.tolist() == [3, 0, 2]
    assert trainer.model.counters_N.tolist() == [0]


def test_class_means_in_train_mode_leave_the_buffers_alone() -> None:
    trainer = trainer_of(Identity2(), batch_size=2)
    data = ClientData(0, torch.arange(10, dtype=torch.uint8).view(5, 1, 1, 2), torch.zeros(5).long())
    before = trainer.model.vector_S.clone()
    means_KD, counts_K = trainer.class_means(data, "train")
    assert counts_K.tolist() == [4, 0, 0]  # 5 samples in batches of 2, the last short one left out
    # Each batch of two is normalised to ±1 in both dimensions, so its mean is 0.
    assert means_KD.abs().max() < 1e-6
    assert torch.equal(trainer.model.vector_S, before)
    assert trainer.model.counters_N.tolist() == [0]


def test_class_means_that_move_the_buffers() -> None:
    """One batch of (0, 2), (4, 6): BatchNorm's mean goes from 0 a tenth of the way to (2, 4)."""
    trainer = trainer_of(Identity2(), batch_size=2)
    data = ClientData(
        0, torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(2, 1, 1, 2), torch.zeros(2).long()
    )
    means_KD, _ = trainer.class_means(data, "train_bn")
    module = trainer.model.module
    running = next(m for m in module.modules() if isinstance(m, torch.nn.BatchNorm1d)).running_mean
    torch.testing.assert_close(running, torch.tensor([0.2, 0.4]))
    assert trainer.model.counters_N.tolist() == [1]
    # Under the statistics of the start z is the pixels: (3, 4) and (0, 5), scaled (0.6, 0.8) and (0, 1).
    trainer = trainer_of(Identity2(), batch_size=2)
    data = ClientData(
        0, torch.tensor([3, 4, 0, 5], dtype=torch.uint8).view(2, 1, 1, 2), torch.zeros(2).long()
    )
    means_KD, _ = trainer.class_means(data, unit=True)
    torch.testing.assert_close(means_KD[0], torch.tensor([0.3, 0.9]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("samples", [1, 5])
def test_a_lone_sample_never_meets_batchnorm_in_train_mode(samples: int) -> None:
    trainer = trainer_of(Identity2(), batch_size=2, local_epochs=2, lr=0.1)
    data = ClientData(0, torch.ones(samples, 1, 1, 2, dtype=torch.uint8), torch.zeros(samples).long())
    sizes = []
    trainer.train(data, start_of(trainer), 0, lambda b: sizes.append(len(b.y_B)) or cross_entropy(b), keep)
    # 5 samples in batches of 2: the lone last one joins the batch before it
    assert sizes == ([1, 1] if samples == 1 else [2, 3, 2, 3])
    assert trainer.model.counters_N.tolist() == [0 if samples == 1 else 4]


def test_a_batch_of_one_is_refused_where_there_is_batchnorm() -> None:
    with pytest.raises(UserError, match="--batch-size 1: one sample has no batch statistics"):
        trainer_of(Identity2(), batch_size=1)
    trainer_of(build_model("small-cnn", (8, 8, 1), 3, False, 0), batch_size=1)


def test_a_frozen_model_is_in_eval_mode_and_stays_as_it_is() -> None:
    trainer = trainer_of(Identity2())
    vector = trainer.model.vector_S.clone()
    vector[trainer.model.num_params :] = torch.tensor([1.0, 2.0, 4.0, 4.0])  # running mean and variance
    z_of = trainer.frozen("other", vector, torch.tensor([7]))
    # (x - mean)/2; with the batch's own statistics it would be ±1
    for _ in range(2):
        assert z_of(torch.tensor([[3.0, 4.0], [5.0, 8.0]])).tolist() == [[1.0, 1.0], [2.0, 3.0]]
    twin = trainer._twins["other"]
    assert torch.equal(twin.vector_S, vector)
    assert twin.counters_N.tolist() == [7]
    assert trainer.model.vector_S[trainer.model.num_params :].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_cuts() -> None:
    assert cuts(7, 3, False, 1) == [(0, 3), (3, 6), (6, 7)]
    assert cuts(7, 3, False, 2) == [(0, 3), (3, 7)]
    assert cuts(7, 3, True, 1) == [(0, 3), (3, 6)]
    assert cuts(2, 3, True, 1) == [(0, 2)]  # the only batch is never dropped
    assert cuts(1, 3, False, 2) == [(0, 1)]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"clip_norm": 0.5}, {"optimizer": "adamw", "lr": 0.001}, {"optimizer": "adamw", "clip_norm": 0.5}],
)
def test_training_is_what_torchs_optimizers_do(shards: Path, channels_last: bool, options: dict) -> None:
    """The flat optimizers against torch.optim's on the model's tensors, same batches, on real digits."""
    with Shards(shards) as file:
        shape, classes = file.header.image_shape, file.num_classes
        settings = {"lr": 0.02, **options}
        config = Config.create(rounds=1, local_epochs=2, weight_decay=1e-3, **settings)
        device = torch.device("cpu")
        data = Clients(file, device, channels_last, 10**9)[0]
        batches = Batches(file, "none", device)
        model = FlatModel(build_model("small-cnn", shape, classes, False, 7), channels_last)
        trainer = Trainer(config, model, batches, classes, 256)
        start = start_of(trainer)
        for _ in range(2):  # what an optimizer remembers does not go on to the next client
            trainer.train(data, start, 3, cross_entropy, keep)

        reference = build_model("small-cnn", shape, classes, False, 7)
        kind = torch.optim.AdamW if "optimizer" in options else torch.optim.SGD
        more = {} if "optimizer" in options else {"momentum": 0.9}
        optimizer = kind(reference.parameters(), lr=settings["lr"], weight_decay=1e-3, **more)
        generator = torch_generator(config.seed, "shuffle", 3, 0)
        longest = 0.0
        for _ in range(2):
            for x_BCHW, y_B in batches.epoch(data, config.batch_size, generator, False, 1):
                optimizer.zero_grad()
                F.cross_entropy(reference(x_BCHW)[1], y_B).backward()
                if "clip_norm" in options:
                    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
                    longest = max(longest, float(norm))
                optimizer.step()
    assert longest == 0 or longest > 0.5  # there was something to clip
    trained = model.module.state_dict()
    assert list(trained) == list(reference.state_dict())
    untrained = build_model("small-cnn", shape, classes, False, 7).state_dict()
    for name, tensor in reference.state_dict().items():
        if "optimizer" in options:  # Adam divides by a gradient's size: where that is all but 0, by noise
            way = (tensor - untrained[name]).norm()
            assert (trained[name] - tensor).norm() < 5e-3 * way
        else:
            torch.testing.assert_close(trained[name], tensor, rtol=2e-4, atol=5e-5)


def test_cross_entropy_with_smoothing_and_class_weights() -> None:
    """Two samples of class 0 and one of class 2, three classes; numbers by hand."""
    y_N = torch.tensor([0, 0, 2])
    # 3 samples, 2 classes held: 3/(2·2), and 3/(2·1); class 1 is not there
    assert balanced_weights(y_N, 3).tolist() == [0.75, 1.0, 1.5]
    logits_BK = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, math.log(2)]])
    batch = Batch(torch.zeros(3, 1, 1, 2), y_N, torch.zeros(3, 2), logits_BK)
    # -log p of each label: log 3, log 3, log 2 (p = 2/4)
    plain = (2 * math.log(3) + math.log(2)) / 3
    weighted = (2 * 0.75 * math.log(3) + 1.5 * math.log(2)) / (2 * 0.75 + 1.5)
    # smoothing 0.3: 0.7 of the above, and 0.1 of -log p of every class, the third's: log 4, log 4, log 2
    smoothed = 0.7 * plain + 0.1 * (2 * 3 * math.log(3) + 2 * math.log(4) + math.log(2)) / 3
    for options, right in (
        ({}, plain),
        ({"class_weights": "balanced"}, weighted),
        ({"label_smoothing": 0.3}, smoothed),
    ):
        trainer = trainer_of(Identity2(), **options)
        data = ClientData(0, torch.zeros(3, 1, 1, 2, dtype=torch.uint8), y_N)
        task = Task(data, {}, {}, Round(0, 1), trainer)
        assert float(task.cross_entropy(batch)) == pytest.approx(right)


def test_a_flat_model_is_views_all_the_way() -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    before = {k: v.clone() for k, v in module.state_dict().items()}
    model = FlatModel(module, channels_last=True)
    # 2·3·9 + 3 convolution, 3 + 3 affine, 3 + 3 running statistics; one counter
    assert (model.num_params, len(model.vector_S), len(model.counters_N)) == (63, 69, 1)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])
    model.load(torch.full((69,), 2.0), torch.tensor([10**6]))
    assert module[0].weight.eq(2).all()
    assert module[1].running_var.eq(2).all()
    assert module[1].num_batches_tracked.item() == 10**6
    module[1].running_mean.fill_(5)
    assert model.vector_S[63:66].tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({"rounds": 4}, [1, 1, 1, 1]),
        ({"rounds": 4, "lr_schedule": "cosine"}, [1, 0.853553, 0.5, 0.146447]),  # (1 + cos(π/4·t))/2
        ({"rounds": 8, "lr_schedule": "step"}, [1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01]),
        ({"rounds": 5, "warmup": 1, "lr_schedule": "cosine"}, [0.5, 1, 0.853553, 0.5, 0.146447]),
        ({"rounds": 5, "warmup": 3}, [0.25, 0.5, 0.75, 1, 1]),
    ],
)
def test_the_learning_rate_follows_the_round(options: dict, factors: list[float]) -> None:
    config = Config.create(**options)
    assert [lr_factor(config, t) for t in range(config.rounds)] == pytest.approx(factors, abs=1e-6)


def test_a_round_is_trained_at_its_learning_rate() -> None:
    """Half the rate, in round 0 of one warm-up round, is what half of --lr gives."""
    data = ClientData(0, torch.arange(8, dtype=torch.uint8).view(4, 1, 1, 2), torch.tensor([0, 1, 2, 0]))
    ends = []
    for options in ({"lr": 0.2, "warmup": 1}, {"lr": 0.1}):
        torch.manual_seed(0)
        trainer = trainer_of(Identity2(), local_epochs=1, batch_size=2, rounds=2, **options)
        trainer.train(data, start_of(trainer), 0, cross_entropy, keep)
        assert trainer.lr == pytest.approx(0.1)
        ends.append(trainer.model.vector_S.clone())
    assert torch.equal(*ends)
