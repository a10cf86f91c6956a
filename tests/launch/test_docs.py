"""The README's walk through one's own images runs as it is typed."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.support.processes import ROOT, activated, clean_environment, finish


def test_the_readme_s_walk_through_own_images(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    walk = text[text.index("## Your own images") : text.index("## The guarantee")]
    script = "set -e\n" + "\n".join(re.findall(r"^```\n(.*?)^```", walk, re.S | re.M))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=clean_environment(PATH=activated()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = finish(process, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 clients, 176 samples, 44 test samples" in done.stdout
    assert (tmp_path / "sites.png").stat().st_size > 0
    figures = dict(re.findall(r'^runs/(\w+)/summary\.json: "final_accuracy": ([\d.]+)', done.stdout, re.M))
    # 59 % of the test images are healthy; the bright square is there to be learned.
    assert float(figures["together"]) > 0.9
    assert float(figures["together"]) > float(figures["alone"]) > 0.6
    assert done.stdout.count("client_accuracy_worst_decile") == 2
    predicted = re.findall(r"^images/East/(\w+)/000\.png (\{.*\})$", done.stdout, re.M)
    assert [label for label, _ in predicted] == ["healthy", "ill"]
    for label, scores in predicted:
        healthy, ill = map(float, re.findall(r"[\d.]+", scores))
        assert (ill > healthy) == (label == "ill"), scores
