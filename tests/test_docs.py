"""README and docs/: links lead somewhere, commands are read by the programs themselves, tables match the code,
and the README's walk through one's own images runs as it is typed."""

import dataclasses
import importlib.util
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.__main__ import _parse as parse_data_prep
from data_prep.options import SOURCES, Sharding, command_type
from fedproc_mpi import algorithms
from fedproc_mpi.cli import parse
from fedproc_mpi.config import FIELD_DEFAULTS, PRESET_DIR, Config, flag
from fedproc_mpi.learn.models import MODELS, RESNETS
from tests.conftest import ROOT, activated, clean_environment, finish

README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, *DOCS]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "results").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
HERE_DOCUMENT = re.compile(r"<<'(\w+)'\n.*?^\1$", re.S | re.M)
EXAMPLES = {
    "NAME": "fedavg",
    "FILE": "shards/mine.h5",
    "path/to/mine.py": "fedavg",
    "runs/first/config.json": "paper",
}


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks of these languages ('' for those without one)."""
    return [body for language, body in FENCE.findall(text) if language in languages]


def slug(heading: str) -> str:
    """The anchor that a forge gives a heading; mkdocs gives the same for headings as plain as ours."""
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
    return kept.replace(" ", "-")


def anchors(path: Path) -> list[str]:
    prose = FENCE.sub("", path.read_text())
    return [slug(heading) for heading in re.findall(r"^#+ (.*)$", prose, re.M)]


@pytest.mark.parametrize("page", LINKED, ids=page_id)
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    prose = FENCE.sub("", page.read_text())
    for link in re.findall(r"\]\(([^)]+)\)", prose):
        if re.match(r"https?:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), f"{page_id(page)}: {link}"
        assert target.is_relative_to(ROOT), f"{page_id(page)}: {link} leaves the repository"
        if anchor:
            assert anchor in anchors(target), f"{page_id(page)}: {link}: {anchors(target)}"


@pytest.mark.parametrize("page", LINKED, ids=page_id)
def test_headings_have_anchors_of_their_own(page: Path) -> None:
    """With the same text twice, forges and mkdocs number them differently."""
    found = anchors(page)
    assert len(found) == len(set(found))


def test_every_page_is_reached_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README.read_text())}
    missing = {page_id(page) for page in DOCS} - linked
    reached_later = {"docs/api.md": ROOT / "docs" / "running.md"}
    for page in missing:
        assert page in reached_later, f"README has no link to {page}"
        assert f"]({Path(page).name})" in reached_later[page].read_text()


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every shell command in a page's fenced blocks, without comments and here documents."""
    for block in blocks(page.read_text(), "", "sh", "bash"):
        for line in HERE_DOCUMENT.sub("", block).splitlines():
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=";|&")
            lexer.whitespace_split = True
            try:
                words = list(lexer)
            except ValueError:  # a line of output, with half a quotation mark
                continue
            command: list[str] = []
            for word in [*words, ";"]:
                if set(word) <= set(";|&"):
                    yield command
                    command = []
                else:
                    command.append(word)


def module_calls(page: Path) -> Iterator[tuple[str, list[str]]]:
    """(module, arguments) of every `python -m MODULE ARGUMENTS`, placeholders filled in."""
    for words in commands(page):
        if "-m" in words and Path(words[words.index("-m") - 1]).name.startswith("python"):
            after = words[words.index("-m") + 1 :]
            if after[0] == "mpi4py":
                after = after[2:]
            yield after[0], [EXAMPLES.get(word, word) for word in after[1:]]


OUR_CALLS = [(page, module, arguments) for page in PAGES for module, arguments in module_calls(page)]


def call_id(value: object) -> str:
    return (
        page_id(value)
        if isinstance(value, Path)
        else " ".join(value)
        if isinstance(value, list)
        else str(value)
    )


@pytest.mark.parametrize(("page", "module", "arguments"), OUR_CALLS, ids=call_id)
def test_commands_are_read_by_the_programs(page: Path, module: str, arguments: list[str]) -> None:
    if module == "fedproc_mpi":
        if "mine" in shlex.join(arguments) or "--mu" in arguments:
            arguments = ["--algorithm", "fedprox", *arguments[2:]]  # the example's own file: see below
        if "--help" in arguments:
            with pytest.raises(SystemExit) as left:
                parse(arguments)
            assert left.value.code == 0
        else:
            parse(arguments)
    elif module == "data_prep":
        if "--help" in arguments:
            arguments = ["digits", "--help"]
            with pytest.raises(SystemExit) as left:
                parse_data_prep(command_type(arguments[0]), arguments)
            assert left.value.code == 0
        else:
            parse_data_prep(command_type(arguments[0]), arguments)
    else:
        assert importlib.util.find_spec(module), f"{page_id(page)}: no module {module}"


def test_the_pages_have_commands_to_read() -> None:
    """Against a test above that reads nothing, and so finds nothing wrong."""
    read = {module for _, module, _ in OUR_CALLS}
    assert {"fedproc_mpi", "fedproc_mpi.doctor", "data_prep", "pytest"} <= read
    assert sum(page == README for page, _, _ in OUR_CALLS) >= 6


def job_calls() -> Iterator[tuple[Path, list[str]]]:
    for page in PAGES:
        for words in commands(page):
            for i, word in enumerate(words):
                if word.startswith("jobs/") and not word.startswith("jobs/logs/"):
                    yield page, words[i:]


@pytest.mark.parametrize(("page", "words"), list(job_calls()), ids=call_id)
def test_job_scripts_are_there_and_take_their_flags(page: Path, words: list[str]) -> None:
    script = ROOT / words[0]
    assert script.is_file(), page_id(page)
    presets = {path.stem for path in PRESET_DIR.glob("*.toml")}
    if script.name == "prepare.sh":
        assert {word for word in words[1:] if not word.startswith("-")} <= presets
    elif script.stem in presets:
        parse(["--preset", script.stem, *words[1:]])


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=page_id)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(
        r"\b(?:jobs|results|benchmarks|examples|fedproc_mpi|data_prep)/[\w./-]+\.\w+", page.read_text()
    )
    made_by_the_reader = {"jobs/site.sh", "fedproc_mpi/algorithms/mine.py"}
    for name in {*named} - made_by_the_reader:
        assert (ROOT / name).is_file(), f"{page_id(page)}: {name}"


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def in_first_cells(text: str) -> set[str]:
    return {word for row in rows(text) for word in re.findall(r"`([^`]+)`", row[0])}


def shown(default: object) -> str:
    """A default as the tables write it."""
    return {"True": "on", "False": "off", "": "none"}.get(str(default), f"`{default}`")


def test_the_table_of_flags_is_the_program_s() -> None:
    text = (ROOT / "docs" / "flags.md").read_text()
    result, _, execution = text.partition("## Execution")
    fields = [f for f in dataclasses.fields(Config) if f.name != "options"]
    for part, is_execution in ((result, False), (execution, True)):
        table = {row[0]: row[1] for row in rows(part) if row[0].startswith("`--")}
        wanted = {
            f"`{flag(f.name)}`": shown(FIELD_DEFAULTS[f.name])
            for f in fields
            if f.metadata["execution"] == is_execution
        }
        assert table == wanted


@pytest.mark.parametrize("name", algorithms.names())
def test_algorithms_are_in_the_tables_with_their_flags(name: str) -> None:
    text = (ROOT / "docs" / "algorithms.md").read_text()
    assert name in in_first_cells(README.read_text())
    row = next(row for row in rows(text) if row[0] == f"`{name}`")
    for field in dataclasses.fields(algorithms.find(name)):
        if name == "fedproc":
            reading = next(row for row in rows(text) if row[0] == f"`{flag(field.name)}`")
            assert reading[1].startswith(f"`{field.default}`"), field.name
        else:
            said = re.search(rf"`{flag(field.name)}[^`]*`(?: \(([^)]*)\))?", row[-1])
            assert said, f"{name}: {flag(field.name)} is not in its row"
            assert (said[1] or "") == str(field.default)


def test_models_presets_sources_and_partitions_are_in_the_tables() -> None:
    every = in_first_cells("\n".join(page.read_text() for page in PAGES))
    assert {*MODELS, *RESNETS, "auto"} <= every
    assert {*SOURCES} <= every
    assert {*Sharding.__dataclass_fields__["partition"].type.__args__} <= every  # type: ignore[union-attr]
    presets = {path.stem: path for path in PRESET_DIR.glob("*.toml")}
    data = (ROOT / "docs" / "data.md").read_text()
    for name, path in presets.items():
        assert f"`{name}`" in data
        if row := next((row for row in rows(data) if row[0] == f"`{name}`"), None):
            config = parse(["--preset", name])
            assert row[2:4] == [config.model, str(config.rounds)], path


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 130


def test_the_example_algorithm_is_one(tmp_path: Path) -> None:
    """The file of docs/developing.md, taken as `--algorithm path/to/mine.py` takes it."""
    pytest.importorskip("fedproc_mpi.flags", reason="the algorithms' new interface is not merged yet")
    (example,) = blocks((ROOT / "docs" / "developing.md").read_text(), "python")
    path = tmp_path / "mine.py"
    path.write_text(example)
    config = parse(["--algorithm", str(path), "--mu", "0.2"])
    assert config.options["mu"] == 0.2
    assert algorithms.find(str(path)).__doc__ == "Mine: one line for --help."


@pytest.mark.launches
def test_the_readme_s_walk_through_own_images_runs_as_typed(tmp_path: Path) -> None:
    text = README.read_text()
    walk = text[text.index("## Your own images") : text.index("## The guarantee")]
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    script = "set -e\n" + "\n".join(blocks(walk, ""))
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=clean_environment(PATH=activated()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
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
