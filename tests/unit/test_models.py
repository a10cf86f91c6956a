"""Models: shapes, parameter counts worked out by hand, GroupNorm, weights from the seed."""

import pytest
import torch
import torchvision
from torch import nn

from fedproc_mpi.errors import UserError
from fedproc_mpi.learn.models import block_size, build_model, check_resnet_options, has_batchnorm


@pytest.fixture(autouse=True)
def _one_thread():
    """On a busy machine torch's threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(name: str, shape=(32, 32, 3), num_classes=10, norm="batch", seed=0) -> nn.Module:
    return build_model(name, shape, num_classes, False, seed, norm)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# conv 3→6 k5; conv 6→16 k5; 400→120; 120→84; head 84→84, 84→256; classifier 256→10: weights + biases
SIMPLE_CNN = [3 * 6 * 25 + 6, 6 * 16 * 25 + 16, 400 * 120 + 120, 120 * 84 + 84]
SIMPLE_CNN += [84 * 84 + 84, 84 * 256 + 256, 256 * 10 + 10]


def test_simple_cnn_by_hand():
    assert SIMPLE_CNN == [456, 2416, 48120, 10164, 7140, 21760, 2570]
    assert count(build("simple-cnn")) == 92_626 == sum(SIMPLE_CNN)
    # 28×28 grey: 28 → 24 → 12 → 8 → 4: 16·4·4 = 256 features
    wanted = sum(SIMPLE_CNN) - 2 * 6 * 25 - 400 * 120 + 256 * 120
    assert count(build("simple-cnn", (28, 28, 1))) == wanted


def test_small_cnn_by_hand():
    # 8 → 8 → 4 → 4 → 2: 32·2·2 = 128 features
    layers = [16 * 9 + 16, 16 * 32 * 9 + 32, 128 * 120 + 120, 120 * 84 + 84]
    assert count(build("small-cnn", (8, 8, 1))) == sum(layers) + sum(SIMPLE_CNN[4:])


@pytest.mark.parametrize(
    ("name", "width", "published"), [("resnet50", 2048, 25_557_032), ("resnet18", 512, 11_689_512)]
)
def test_resnet_trunk_is_torchvisions(name, width, published):
    """torchvision's published number, less its classifier, with a 3×3 stem for the 7×7 one."""
    original = getattr(torchvision.models, name)(weights=None)
    assert count(original) == published
    model = build(name, num_classes=100)
    trunk = published - (width * 1000 + 1000) - 3 * 64 * 49 + 3 * 64 * 9
    assert count(model.encoder) == trunk
    head = width * width + width + width * 256 + 256
    assert count(model) == trunk + head + 256 * 100 + 100
    strides = [
        [m.stride for m in layer.modules() if isinstance(m, nn.Conv2d)]
        for layer in original.children()
        if isinstance(layer, nn.Sequential)
    ]
    mine = [
        [m.stride for m in layer.modules() if isinstance(m, nn.Conv2d)]
        for layer in model.encoder.children()
        if isinstance(layer, nn.Sequential)
    ]
    assert mine == strides


@pytest.mark.parametrize(
    ("shape", "side", "norm"),
    [
        ((28, 28, 1), 4, "group"),
        ((32, 32, 3), 4, "batch"),
        ((64, 64, 3), 8, "group"),
        ((224, 224, 3), 28, "batch"),
    ],
)
def test_resnets_take_28_to_224_pixels(shape, side, norm):
    model = build("resnet18", shape, 7, norm).eval()
    seen = []
    model.encoder.layer4.register_forward_hook(lambda module, inputs, out: seen.append(out.shape))
    with torch.no_grad():
        z, logits = model(torch.zeros(1, shape[2], *shape[:2]))
    assert seen == [(1, 512, side, side)]
    assert z.shape == (1, 256)
    assert logits.shape == (1, 7)


def test_group_norm_replaces_every_batch_norm():
    model, usual = build("resnet18", norm="group"), build("resnet18")
    kinds = [type(m) for m in model.modules()]
    assert kinds.count(nn.GroupNorm) == [type(m) for m in usual.modules()].count(nn.BatchNorm2d) == 20
    assert nn.BatchNorm2d not in kinds
    assert count(model) == count(usual)
    assert has_batchnorm(usual)
    assert not has_batchnorm(model)
    assert not list(model.buffers())
    assert all(m.num_groups == 32 for m in model.modules() if isinstance(m, nn.GroupNorm))


@pytest.mark.parametrize("name", ["simple-cnn", "small-cnn", "resnet18"])
def test_weights_come_from_the_seed_alone(name):
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    one, again, other = build(name), build(name), build(name, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    first = [next(iter(m.parameters())) for m in (one, again, other)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


@pytest.mark.parametrize(("name", "norm"), [("resnet50", "batch"), ("resnet18", "group")])
def test_resnets_train(name, norm):
    """A small step down the gradient lowers the loss of the same batch (16 px, so that it is quick)."""
    torch.manual_seed(0)
    model = build(name, (16, 16, 3), num_classes=2, norm=norm).train()
    x, y = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 0, 1])
    before = nn.functional.cross_entropy(model(x)[1], y)
    before.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        for p in model.parameters():
            p -= 1e-3 * p.grad
        assert nn.functional.cross_entropy(model(x)[1], y) < before


def test_auto_goes_by_size():
    assert count(build("auto")) == count(build("simple-cnn"))
    assert count(build("auto", (8, 8, 1))) == count(build("small-cnn", (8, 8, 1)))


def test_norm_is_of_the_resnets_alone():
    check_resnet_options(["simple-cnn", "resnet18"], "group", "imagenet")  # several kinds
    with pytest.raises(UserError, match="--norm group is for resnet18 and resnet50; small-cnn has"):
        check_resnet_options(["small-cnn"], "group", "cifar")
    with pytest.raises(UserError, match="--stem imagenet is for resnet18 and resnet50; small-cnn has"):
        check_resnet_options(["small-cnn"], "batch", "imagenet")


@pytest.mark.parametrize(
    ("name", "shape", "norm", "words"),
    [
        ("resnet500", (32, 32, 3), "batch", "did you mean resnet50"),
        ("simple-cnn", (8, 8, 1), "batch", "too small"),
    ],
)
def test_mistakes(name, shape, norm, words):
    with pytest.raises(UserError, match=words):
        build(name, shape, norm=norm)


class Wide(nn.Module):
    """Its first layer gives 8·H·W values per sample, 25 times the image for the second."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.z = nn.Linear(channels, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z_BD = self.z(self.first(x_BCHW).mean((2, 3)))
        return z_BD, self.out(z_BD)


@pytest.mark.parametrize(
    ("channels", "side", "block"),
    [
        (8, 32, 256),  # 8·32²·4 bytes: 8,192 samples in 256 MiB, of which 256 are taken
        (64, 64, 256),  # 2^20 bytes per sample: 256 exactly
        (65, 64, 128),  # a little more
        (64, 224, 16),  # 12.8 MB: 20 samples
        (2048, 512, 1),  # 2^31 bytes: not even one
    ],
)
def test_evaluation_blocks_follow_from_the_largest_layer(channels: int, side: int, block: int) -> None:
    with torch.device("meta"):
        model = Wide(channels)
    assert block_size(model, (side, side, 1)) == block
    assert not any(module._forward_hooks for module in model.modules())
