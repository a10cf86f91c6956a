"""Models: encoder → projection head → classifier, returning (z_BD, logits_BK) (MOON §4.1).

Shapes: B batch, C channels, H height, W width, D width of z, K classes.
"""

import functools
import importlib
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import nearest
from fedproc_mpi.plugins import load_file

EMBEDDING = 256  # D: MOON §4.1, FedProc §4.1
ImageShape = tuple[int, int, int]  # H, W, C
MOST_IN_A_BLOCK, BLOCK_BYTES = 256, 2**28


class ProjectedModel(nn.Module):
    """Encoder → head (d→d, ReLU, d→256) → linear classifier on z. Every algorithm uses the head.

    normalize_z: the classifier reads z / |z|, as in the author's code.
    """

    def __init__(self, encoder: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, EMBEDDING))
        self.classifier = nn.Linear(EMBEDDING, num_classes)
        self.normalize_z = False

    def forward(self, x_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        z_BD = self.head(self.encoder(x_BCHW))
        return z_BD, self.classifier(F.normalize(z_BD) if self.normalize_z else z_BD)


def _conv_encoder(shape: ImageShape, channels: tuple[int, int], kernel: int, padding: int) -> nn.Sequential:
    """conv, ReLU, maxpool 2, twice; then fc → 120 → 84, each with ReLU (LeNet's shape)."""
    height, width, in_channels = shape
    layers: list[nn.Module] = []
    for out_channels in channels:
        layers += [nn.Conv2d(in_channels, out_channels, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        in_channels = out_channels
        height, width = ((side - kernel + 1 + 2 * padding) // 2 for side in (height, width))
    if min(height, width) < 1:
        raise UserError(f"images of {shape[0]}×{shape[1]} px are too small for this model; try small-cnn")
    layers += [nn.Flatten(), nn.Linear(in_channels * height * width, 120), nn.ReLU(), nn.Linear(120, 84)]
    return nn.Sequential(*layers, nn.ReLU())


def small_cnn(shape: ImageShape, num_classes: int) -> nn.Module:
    """For tiny inputs (8×8 digits): two 3×3 convolutions that keep the size, 16 and 32 channels."""
    return ProjectedModel(_conv_encoder(shape, (16, 32), kernel=3, padding=1), 84, num_classes)


def simple_cnn(shape: ImageShape, num_classes: int) -> nn.Module:
    """MOON's and FedProc's CIFAR-10 encoder: two 5×5 convolutions, 6 and 16 channels (MOON §4.1)."""
    return ProjectedModel(_conv_encoder(shape, (6, 16), kernel=5, padding=0), 84, num_classes)


def _resnet(depth: str, shape: ImageShape, num_classes: int, norm: str, stem: str) -> nn.Module:
    """torchvision's trunk in the CIFAR form: stem 3×3 stride 1, no maxpool (MOON's code); 28 px and up.

    norm: group puts GroupNorm with 32 groups (Wu & He 2018) where BatchNorm is. stem: imagenet keeps
    torchvision's own, 7×7 stride 2 and a maxpool, with which a pretrained stem fits where images have 3
    channels.
    """
    from torchvision.models import resnet  # takes seconds to import

    layer = nn.BatchNorm2d if norm == "batch" else functools.partial(nn.GroupNorm, 32)
    trunk = getattr(resnet, depth)(weights=None, norm_layer=layer)
    width = trunk.fc.in_features
    kernel, stride = (7, 2) if stem == "imagenet" else (3, 1)
    trunk.conv1 = nn.Conv2d(shape[2], 64, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(
        trunk.conv1.weight, mode="fan_out", nonlinearity="relu"
    )  # as the other convolutions
    trunk.fc = nn.Identity()
    if stem != "imagenet":
        trunk.maxpool = nn.Identity()
    return ProjectedModel(trunk, width, num_classes)


Factory = Callable[[ImageShape, int], nn.Module]
MODELS: dict[str, Factory] = {"small-cnn": small_cnn, "simple-cnn": simple_cnn}
RESNETS = ("resnet18", "resnet50")


def resolve(name: str, shape: ImageShape) -> str:
    """The model's name, where it is `auto`: by image size."""
    if name != "auto":
        return name
    return "simple-cnn" if min(shape[:2]) >= 28 else "small-cnn"


def build_model(
    name: str,
    shape: ImageShape,
    num_classes: int,
    normalize_z: bool,
    seed: int,
    norm: str = "batch",
    stem: str = "cifar",
) -> nn.Module:
    """A model with the weights that `seed` draws; the caller's random state is left alone.

    name: one of MODELS or RESNETS, `auto` (`resolve`), or `module:Class` or `path/to/mine.py:Class`, which is
    called with (shape, num_classes). norm: batch or group; stem: cifar or imagenet; both of the ResNets alone
    (`check_resnet_options`). Raises UserError for an unknown name, or a model that does not return
    (z_BD, logits_BK).
    """
    name = resolve(name, shape)
    factory = _factory(name, norm, stem)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = factory(shape, num_classes)
    if normalize_z:
        if not isinstance(model, ProjectedModel):
            raise UserError("--normalize-z works on the built-in models only; normalise in your own")
        model.normalize_z = True
    _check(name, model, shape, num_classes)
    return model


def check_resnet_options(names: Iterable[str], norm: str, stem: str) -> None:
    """Raises UserError where one of them is asked for and none of the models has such layers of ours."""
    if set(names) & set(RESNETS):
        return
    for flag, asked in ((f"--norm {norm}", norm != "batch"), (f"--stem {stem}", stem != "cifar")):
        if asked:
            raise UserError(f"{flag} is for {' and '.join(RESNETS)}; {', '.join(names)} has no such layers")


def embedding_size(model: nn.Module, shape: ImageShape) -> int:
    """D: the width of z."""
    return _probe(model, shape)[0].shape[1]


def block_size(model: nn.Module, shape: ImageShape) -> int:
    """How many samples class means and evaluation compute at a time: a power of two, 256 at most.

    So many that the largest tensor that a layer gives holds at most BLOCK_BYTES in float32. Logits change
    with the batch they are computed in (law 1), so this follows from model and image size alone.
    """
    largest = [1]  # values per sample

    def look(module: nn.Module, given: object, out: object) -> None:
        if isinstance(out, Tensor):
            largest.append(out.numel() // 2)  # the probe is a batch of 2

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    _probe(model, shape)
    for hook in hooks:
        hook.remove()
    fitting = max(1, BLOCK_BYTES // (4 * max(largest)))
    return min(MOST_IN_A_BLOCK, 2 ** (fitting.bit_length() - 1))


def has_batchnorm(model: nn.Module) -> bool:
    """Whether a batch of one sample would fail (or mean nothing) in train mode."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def _factory(name: str, norm: str, stem: str) -> Factory:
    if name in RESNETS:
        return lambda shape, num_classes: _resnet(name, shape, num_classes, norm, stem)
    if ":" in name:
        return _import_model(name)
    if name not in MODELS:
        known = (*MODELS, *RESNETS)
        raise UserError(
            f"--model {name}: no such model; {nearest(name, known)} (or module:Class, path/to/mine.py:Class)"
        )
    return MODELS[name]


def _import_model(name: str) -> Factory:
    """`module:Class` or `path/to/mine.py:Class`; UserError where there is none."""
    module, _, attribute = name.rpartition(":")
    try:
        found = load_file(module, "--model") if module.endswith(".py") else importlib.import_module(module)
        return getattr(found, attribute)
    except UserError:
        raise
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"--model {name}: cannot import it: {error}") from error


def _probe(model: nn.Module, shape: ImageShape) -> tuple[Tensor, Tensor]:
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    with torch.no_grad():
        out = model(torch.zeros(2, shape[2], shape[0], shape[1], device=device))
    model.train(was_training)
    return out


def _check(name: str, model: nn.Module, shape: ImageShape, num_classes: int) -> None:
    """A user's model is tried once, so that a wrong one is told at the start and in words."""
    wanted = f"--model {name}: must map (B, {shape[2]}, {shape[0]}, {shape[1]}) to (z_BD, logits_BK)"
    try:
        out = _probe(model, shape)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{wanted}; it raised {type(error).__name__}: {error}") from error
    if not (isinstance(out, tuple) and len(out) == 2 and all(isinstance(v, Tensor) for v in out)):
        raise UserError(f"{wanted}; it returned {type(out).__name__}")
    z_BD, logits_BK = out
    if z_BD.ndim != 2 or logits_BK.shape != (2, num_classes):
        raise UserError(f"{wanted} with K={num_classes}; got {tuple(z_BD.shape)}, {tuple(logits_BK.shape)}")
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise UserError(f"--model {name}: parameters must be float32")
