"""The README's walk through one's own images runs as it is typed."""

import json
import re
import shutil
import subprocess
from pathlib import Path

from tests.support.processes import ROOT, activated, clean_environment, finish


def run_script(folder: Path, timeout: float, *words: str) -> str:
    """What bash prints with these words, in a folder with the activated environment; it must end well."""
    process = subprocess.Popen(
        ["bash", *words],
        cwd=folder,
        env=clean_environment(PATH=activated()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = finish(process, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_s_walk_through_own_images(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    walk = text[text.index("## Your own images") : text.index("## The guarantee")]
    script = "set -e\n" + "\n".join(re.findall(r"^```\n(.*?)^```", walk, re.S | re.M))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    out = run_script(tmp_path, 240, "-c", script)
    assert "3 clients, 176 samples, 44 test samples" in out
    assert (tmp_path / "sites.png").stat().st_size > 0
    # 59 % of the test images are healthy; the bright square is there to be learned.
    found = re.findall(r"^(fedproc|solo) .* 1 +([\d.]+) ±", out, re.M)
    accuracy = {name: float(figure) for name, figure in found}
    assert accuracy["fedproc"] > 90
    assert accuracy["fedproc"] > accuracy["solo"] > 60
    assert re.search(r"fedproc against solo: of 3 sites \d gain", out)
    assert (tmp_path / "figures" / "sites_classifier.png").stat().st_size > 0
    predicted = re.findall(r"^images/East/(\w+)/000\.png +(\w+)  [\d.]+ %  nearest", out, re.M)
    assert predicted == [("healthy", "healthy"), ("ill", "ill")]
    assert (tmp_path / "together.pt2").stat().st_size > 0


def test_the_hospitals_example(tmp_path: Path) -> None:
    """One script from pictures to an exported model; the notebook beside it holds the same commands."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    script = tmp_path / "examples" / "hospitals" / "hospitals.sh"
    out = run_script(tmp_path, 400, str(script))
    assert re.search(r"fedavg against solo: of 3 sites [123] gain", out)
    assert "told by the nearest prototype" in (tmp_path / "hospitals/figures/evaluate.md").read_text()
    predictions = (tmp_path / "hospitals/predicted.csv").read_text().splitlines()
    assert predictions[0] == "image,class,prototype_class,p(healthy),p(ill)"
    assert [line.split(",")[1] for line in predictions[1:]] == ["healthy", "ill", "ill"]
    assert (tmp_path / "hospitals/hospitals.onnx").stat().st_size > 0
    notebook = json.loads((ROOT / "examples" / "hospitals" / "hospitals.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    # The first two prepare the folder and make the pictures, without a word.
    assert all(cell["outputs"] for cell in cells[2:])
    typed = [line for cell in cells for line in "".join(cell["source"]).splitlines()[1:]]
    commands = [line for line in script.read_text().splitlines() if line.startswith(("mpirun", "python"))]
    assert [line for line in typed if line.startswith(("mpirun", "python"))] == commands
