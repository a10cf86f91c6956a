"""The picture of features: what it shows, by another way to the same numbers; and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch.nn.functional as F
from PIL import Image

from fedproc_mpi import Config, load_model, run
from fedproc_mpi.report.__main__ import main as report
from fedproc_mpi.report.features import features
from fedproc_mpi.shards import Shards

SMALL = {"rounds": 2, "local_epochs": 1, "model": "small-cnn", "lr": 0.01}


@pytest.fixture(scope="module")
def runs(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("features")
    for name in ("fedproc", "scaffold", "solo"):
        run(Config.create(algorithm=name, shards=str(shards), run_dir=str(top / name), **SMALL))
    return top


def test_the_models_and_the_prototypes_of_the_run_are_shown(shards: Path, runs: Path) -> None:
    before = {path: path.read_bytes() for path in (runs / "fedproc").iterdir()}
    (of_all, first, second), y_N, classes = features(runs / "fedproc", ["0", "3"])
    assert before == {path: path.read_bytes() for path in (runs / "fedproc").iterdir()}
    model = load_model(runs / "fedproc")
    with Shards(shards) as file:
        x_NHWC, labels_N = file.test_set.read(0, len(file.test_set))
        held = [sorted(set(file.client(k)[1].tolist())) for k in (0, 3)]
    assert (y_N == labels_N).all()
    assert len(classes) == 10
    assert np.allclose(of_all.z_ND, F.normalize(model.embed(x_NHWC)).detach(), atol=1e-6)
    assert model.prototypes_KD is not None
    for one in (of_all, first, second):
        assert one.before_KD is not None
        assert np.allclose(one.before_KD, F.normalize(model.prototypes_KD), atol=1e-6, equal_nan=True)
    assert of_all.after_KD is None
    for one, classes_held in zip((first, second), held, strict=True):
        assert one.after_KD is not None
        known_K = ~np.isnan(one.after_KD).any(1)
        assert np.flatnonzero(known_K).tolist() == classes_held
        assert np.allclose(np.linalg.norm(one.after_KD[known_K], axis=1), 1)
        assert not np.allclose(one.z_ND, of_all.z_ND, atol=1e-4), "the client has not trained"


def test_an_algorithm_without_prototypes_with_what_its_clients_keep(runs: Path) -> None:
    found, _, _ = features(runs / "scaffold", ["1", "2"])
    assert [one.before_KD is None for one in found] == [True, True, True]
    assert [one.after_KD is None for one in found] == [True, False, False]


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_the_report_draws_them(runs: Path, tmp_path: Path, method: str) -> None:
    words = [str(runs), "--out", str(tmp_path / "out"), "--features", str(runs / "fedproc")]
    assert report([*words, "--feature-method", method]) == 0
    with Image.open(tmp_path / "out" / "features.png") as picture:
        assert picture.width > picture.height
    assert "![Features](features.png)" in (tmp_path / "out" / "report.md").read_text()


def test_what_is_refused(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(runs / "fedproc", bare)
    for path in bare.glob("checkpoint*"):
        path.unlink()
    for run_dir, more, words in (
        (runs / "solo", [], "each client has its own model"),
        (bare, [], "no checkpoint"),
        (runs / "fedproc", ["--feature-clients", "0", "9"], "clients are 0 to 4"),
        (runs / "fedproc", ["--feature-clients", "0"], "name two clients"),
        (tmp_path, [], "no run directory"),
    ):
        out = tmp_path / "out"
        assert report([str(runs), "--out", str(out), "--features", str(run_dir), *more]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert "Traceback" not in error
