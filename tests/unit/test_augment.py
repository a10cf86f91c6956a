"""The batched augmentation against torchvision's reference transforms on the same parameters."""

import pytest
import torch
from torchvision.transforms.v2 import functional as reference

from fedproc_mpi.learn.data import Batches, ClientData, augment_batch, rotate, shift_and_flip
from fedproc_mpi.learn.seeds import torch_generator
from fedproc_mpi.shards import Header


def images(batch: int = 64, height: int = 32, width: int = 32, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (batch, channels, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("mode", ["reflect", "constant"])
@pytest.mark.parametrize("size", [(32, 32), (28, 28), (20, 33)])
def test_pad_crop_and_flip(mode, size):
    x = images(81, *size)
    shift = torch.tensor([(row, column) for row in range(9) for column in range(9)])
    flip = torch.arange(81) % 2 == 0
    got = shift_and_flip(x, shift, flip, mode)
    for i in range(81):
        padded = reference.pad(x[i], [4, 4, 4, 4], padding_mode=mode)
        wanted = reference.crop(padded, int(shift[i, 0]), int(shift[i, 1]), *size)
        wanted = reference.horizontal_flip(wanted) if flip[i] else wanted
        assert torch.equal(got[i], wanted)


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (64, 64)])
def test_rotation(size):
    x, degrees = images(61, *size), torch.linspace(-15, 15, 61)
    got = rotate(x, degrees)
    for i in range(61):
        wanted = reference.rotate(x[i], float(degrees[i]), reference.InterpolationMode.NEAREST, fill=[0.0])
        assert (got[i] != wanted).float().mean() < 0.002, degrees[i]  # ties between two neighbours
    assert torch.equal(got[30], x[30])
    assert (got[0] == 0).all(0).any()  # a corner is filled with zeros


def test_rotation_turns_counter_clockwise_as_pillow_does():
    x = torch.zeros(1, 1, 33, 33, dtype=torch.uint8)
    x[0, 0, 16, 28] = 255  # right of the centre
    row, _ = divmod(int(rotate(x, torch.tensor([15.0])).argmax()), 33)
    assert row < 16  # it went up


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
def test_draws_have_the_references_distribution(kind):
    """Shifts uniform over 0…8 in both directions, half of the images flipped; angles within ±15°."""
    draws = torch.rand(9000, 4, generator=torch_generator(0, "test"))
    shifts = (draws[:, :2] * 9).long()
    for side in (0, 1):
        assert torch.bincount(shifts[:, side], minlength=9).float().div(1000).sub(1).abs().max() < 0.12
    x = images(500)
    got = augment_batch(x, kind, torch_generator(0, "test"))
    assert got.shape == x.shape
    assert got.dtype == torch.uint8
    changed = (got != x).flatten(1).any(1).float().mean()
    assert changed > 0.95


def test_none_leaves_images_alone():
    x = images(4)
    assert augment_batch(x, "none", torch.Generator()) is x


class Fake:
    """As much of Shards as Batches reads."""

    def __init__(self, dataset: str) -> None:
        self.header = Header(dataset, ["a", "b"], (32, 32, 3), "iid", 0, [0.5] * 3, [0.25] * 3)


@pytest.mark.parametrize(
    ("dataset", "kind"),
    [("cifar10", "cifar10"), ("cifar100", "cifar100"), ("tinyimagenet", "none"), ("digits", "none")],
)
def test_auto_follows_the_data_set(dataset, kind):
    assert Batches(Fake(dataset), "auto", torch.device("cpu")).augment == kind


def test_batches_are_a_function_of_seed_round_and_client():
    x = images(100)
    data = ClientData(3, x, torch.arange(100) % 2)
    batches = Batches(Fake("cifar100"), "auto", torch.device("cpu"))

    def epochs(seed: int, t: int, client: int) -> list[torch.Tensor]:
        generator = torch_generator(seed, "shuffle", t, client)
        return [xs for _ in range(2) for xs, _ in batches.epoch(data, 32, generator, False, 1)]

    one, again = epochs(0, 5, 3), epochs(0, 5, 3)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], one[4])  # another epoch
    for other in (epochs(1, 5, 3), epochs(0, 6, 3), epochs(0, 5, 4)):
        assert not torch.equal(one[0], other[0])


def test_normalisation():
    batches = Batches(Fake("digits"), "none", torch.device("cpu"))
    x = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 1, 1)
    assert batches.normalise(x)[:, 0, 0, 0].tolist() == pytest.approx([-2.0, 2.0])
