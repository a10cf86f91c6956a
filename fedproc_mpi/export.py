"""`python -m fedproc_mpi.export RUN --out FILE`: a run's model for other programs. See --help.

Shapes: B images, C channels, H, W image, K classes, D width of z.
"""

import contextlib
import copy
import io
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedproc_mpi.comm.launch import require_alone
from fedproc_mpi.command import require_new, run_command
from fedproc_mpi.config import read_json
from fedproc_mpi.errors import FedprocError, UserError
from fedproc_mpi.flags import REQUIRED, Parser, setting, validate
from fedproc_mpi.predictor import Predictor, load_model
from fedproc_mpi.shards import Shards
from fedproc_mpi.store.files import SUMMARY, write_output
from fedproc_mpi.store.model import find_client, read_config
from fedproc_mpi.terminal import say

HELP = """A run's model as one file for other programs, normalisation inside: images (B, C, H, W) uint8 in,
logits (B, K), probabilities (B, K) and z (B, D) out, for any number of images. The file is read again and
compared with the run's own predictions before it is said to be done."""
OUTPUTS = ("logits", "probabilities", "z")
METADATA = "fedproc_mpi"  # the entry of the file's metadata that holds a JSON object
MOST_APART = 1e-4  # of two probabilities; kernels of another program round otherwise
CHECKED = 300  # test images
Images = npt.NDArray[np.uint8]
Told = Callable[[Images], npt.NDArray[np.float32]]  # images → probabilities


class NotTheSame(FedprocError):
    """The exported model answers otherwise than the run's (exit 1)."""


@dataclass(frozen=True)
class Options:
    """The flags."""

    out: Path = setting(
        REQUIRED, "the file to write; its ending says which kind: .onnx or .pt2 (torch.export)"
    )
    client: str = setting("", "whose model, by name or number, where clients have models of their own")
    best: bool = setting(False, "the model of the best round by validation (best.pt)")

    def __post_init__(self) -> None:
        validate(self)
        require_new(self.out, list(KINDS))


class Exported(nn.Module):
    """What is written: uint8 images (B, C, H, W) → (logits_BK, probabilities_BK, z_BD), all float32."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.normalise, self.model = copy.deepcopy(predictor.normalise), copy.deepcopy(predictor.model)
        for tensor in (*self.model.parameters(), *self.model.buffers()):  # no views of the run's flat vector
            tensor.data = tensor.data.contiguous().clone()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z_BD, logits_BK = self.model(self.normalise(images))
        return logits_BK, logits_BK.softmax(1), z_BD


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    return run_command("fedproc_mpi.export", _export, argv)


def _export(argv: list[str]) -> None:
    require_alone("export")
    parser = Parser("export", prog="python -m fedproc_mpi.export", description=HELP)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    given, options = parser.read_as(Options, argv)
    config, record = read_config(given.run)
    model = load_model(given.run, find_client(record["data"], options.client), options.best)
    height, width, channels = model.image_shape
    example = torch.zeros(2, channels, height, width, dtype=torch.uint8)
    write, read = KINDS[options.out.suffix]
    with _quiet():
        written = write(Exported(model).eval(), example, _metadata(given.run, model))
        told = read(written)
    images, which = _images(config.shards, record["data"], example)
    apart = _compare(model, told, images)
    write_output(written, options.out)
    half = " (the run computed in bf16, the file does in fp32)" if config.precision == "bf16" else ""
    say(
        f"{options.out}: {len(images)} {which} in batches of 1 and more: probabilities at most {apart:.1e} "
        f"from the run's{half}"
    )


def _metadata(run_dir: Path, model: Predictor) -> str:
    """What a user of the file needs to know, as JSON."""
    facts: dict[str, Any] = {"classes": model.classes, "image_shape_HWC": list(model.image_shape)}
    facts |= {"input": "images: uint8, (B, C, H, W), RGB or grey", "outputs": list(OUTPUTS)}
    facts |= {"algorithm": model.config.algorithm, "rounds": model.rounds}
    with contextlib.suppress(UserError):
        facts["model_sha256"] = read_json(run_dir / SUMMARY).get("model_sha256")
    with contextlib.suppress(PackageNotFoundError):
        facts["made_by"] = f"fedproc_mpi {version('fedproc_mpi')}"
    return json.dumps(facts, ensure_ascii=False)


def _write_onnx(module: nn.Module, example: Tensor, metadata: str) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError as error:
        raise _missing(error) from error
    program = torch.onnx.export(
        module,
        (example,),
        dynamo=True,
        dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
        input_names=["images"],
        output_names=list(OUTPUTS),
        verbose=False,
    )
    assert program is not None
    written = program.model_proto
    onnx.helper.set_model_props(written, {METADATA: metadata})
    return bytes(written.SerializeToString())


def _read_onnx(written: bytes) -> Told:
    try:
        import onnxruntime
    except ImportError as error:
        raise _missing(error) from error
    session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(session.run(["probabilities"], {"images": images})[0])


def _write_pt2(module: nn.Module, example: Tensor, metadata: str) -> bytes:
    shapes = {"images": {0: torch.export.Dim("batch")}}
    program = torch.export.export(module, (example,), dynamic_shapes=shapes)
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={METADATA: metadata})
    return file.getvalue()


def _read_pt2(written: bytes) -> Told:
    module = torch.export.load(io.BytesIO(written)).module()
    return lambda images: module(torch.from_numpy(images))[1].detach().numpy()


KINDS = {".onnx": (_write_onnx, _read_onnx), ".pt2": (_write_pt2, _read_pt2)}


def _missing(error: ImportError) -> UserError:
    return UserError(
        f"--out …onnx needs packages that are not here ({error.name}): "
        "pip install '.[export]' in the checkout"
    )


def _images(path: str, data: dict[str, Any], example: Tensor) -> tuple[Images, str]:
    """Images (N, C, H, W) of the run's test set, if it is still there, else random ones; and which."""
    with contextlib.suppress(UserError), Shards(path) as shards:
        if shards.fingerprint == data["fingerprint"]:
            x_NHWC, _ = shards.test_set.read(0, CHECKED)
            return np.ascontiguousarray(x_NHWC.transpose(0, 3, 1, 2)), "test images"
    random = np.random.default_rng(0)
    shape = (CHECKED, *example.shape[1:])
    return random.integers(0, 256, shape, np.uint8), "random images (the run's shards are not there)"


def _compare(model: Predictor, told: Told, images: Images) -> float:
    """The largest difference of a probability. Raises NotTheSame where it is too large."""
    apart = 0.0
    for batch in (images[:1], images[1:4], images[4:]):
        if len(batch):
            difference = np.abs(told(batch) - model.predict(batch).probabilities).max()
            apart = max(apart, float(difference) if np.isfinite(difference) else np.inf)
    allowed = 100 * MOST_APART if model.config.precision == "bf16" else MOST_APART
    if apart > allowed:
        raise NotTheSame(
            f"the exported model answers otherwise than the run's: a probability is {apart:.1e} apart "
            f"({allowed:g} allowed); nothing was written"
        )
    return apart


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch's exporters print and warn of from the terminal; exceptions come through."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            with contextlib.redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                yield
    finally:
        logging.disable(before)


if __name__ == "__main__":
    sys.exit(main())
