"""README and docs/: links lead somewhere, the programs read the commands, tables match the code."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.__main__ import main as data_prep
from fedproc_mpi import algorithms, run
from fedproc_mpi.cli import parse
from fedproc_mpi.compare import main as compare
from fedproc_mpi.config import PRESET_DIR, Config
from fedproc_mpi.evaluate import main as evaluate
from fedproc_mpi.export import main as export
from fedproc_mpi.flags import flag, settings_of
from fedproc_mpi.learn.models import MODELS, RESNETS
from fedproc_mpi.predict import main as predict
from fedproc_mpi.report.__main__ import main as report
from fedproc_mpi.scaling import main as scaling
from fedproc_mpi.study import main as study
from tests.support.processes import ROOT

README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, *DOCS]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "results").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
HERE_DOCUMENT = re.compile(r"<<'(\w+)'\n.*?^\1$", re.S | re.M)
EXAMPLES = {
    "NAME": "fedavg",
    "FILE": "shards/mine.h5",
    "path/to/mine.py": "fedprox",  # has --mu as well; the example itself is trained below
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


def read_by_data_prep(
    arguments: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In an empty folder: the flags are read, and then at most the data is missing."""
    monkeypatch.chdir(folder)
    arguments = ["digits" if word == "SOURCE" else word for word in arguments if word != "--download"]
    if data_prep(arguments) != 0:
        said = capsys.readouterr().err
        assert re.search("no such (folder|file|shards file)|not found|missing in|looked for", said), said


ANSWERS = {
    "fedproc_mpi.compare": compare,
    "fedproc_mpi.evaluate": evaluate,
    "fedproc_mpi.export": export,
    "fedproc_mpi.predict": predict,
}
OUR_CALLS = [(page, module, arguments) for page in PAGES for module, arguments in module_calls(page)]


def call_id(value: object) -> str:
    if isinstance(value, Path):
        return page_id(value)
    return " ".join(value) if isinstance(value, list) else str(value)


@pytest.mark.parametrize(("page", "module", "arguments"), OUR_CALLS, ids=call_id)
def test_commands_are_read_by_the_programs(
    page: Path,
    module: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if module == "fedproc_mpi":
        if "--help" in arguments:
            with pytest.raises(SystemExit) as left:
                parse(arguments)
            assert left.value.code == 0
        else:
            parse(arguments)
    elif module == "data_prep":
        read_by_data_prep(arguments, tmp_path, monkeypatch, capsys)
    elif module in ANSWERS and "--help" not in arguments:  # the flags are read; the run is not there
        monkeypatch.chdir(tmp_path)
        assert ANSWERS[module](arguments) == 2
        assert "is no run directory" in capsys.readouterr().err
    elif module == "fedproc_mpi.report":
        monkeypatch.chdir(tmp_path)
        assert report(arguments) == 2
        assert "no such folder" in capsys.readouterr().err
    elif module == "fedproc_mpi.scaling":
        monkeypatch.chdir(tmp_path)
        assert scaling([*arguments, "--rounds", "1"]) == 2  # all flags are read before this one is refused
        assert "--rounds must be at least 2" in capsys.readouterr().err
    elif module == "fedproc_mpi.study":
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine.toml").write_text("grid = {seed = [0, 1]}")
        assert study([*arguments, "--plan"]) == 0  # which starts and submits nothing
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
    return {"True": "on", "False": "off", "": "none", "None": "none"}.get(str(default), f"`{default}`")


def test_the_table_of_flags_is_the_program_s() -> None:
    text = (ROOT / "docs" / "flags.md").read_text()
    result, _, execution = text.partition("## Execution")
    for part, is_execution in ((result, False), (execution, True)):
        table = {row[0]: row[1] for row in rows(part) if row[0].startswith("`--")}
        fields = [f for f in settings_of(Config).values() if f.metadata["execution"] == is_execution]
        assert table == {f"`{flag(f.name)}`": shown(f.default) for f in fields}


@pytest.mark.parametrize("name", algorithms.names())
def test_algorithms_are_in_the_tables_with_their_flags(name: str) -> None:
    text = (ROOT / "docs" / "algorithms.md").read_text()
    assert name in in_first_cells(README.read_text())
    row = next(row for row in rows(text) if row[0] == f"`{name}`")
    for field in settings_of(algorithms.find(name)).values():
        if name == "fedproc":
            reading = next(row for row in rows(text) if row[0] == f"`{flag(field.name)}`")
            assert reading[1].startswith(f"`{field.default}`"), field.name
        else:
            said = re.search(rf"`{flag(field.name)}[^`]*`(?: \(([^)]*)\))?", row[-1])
            assert said, f"{name}: {flag(field.name)} is not in its row"
            assert (said[1] or "") == str(field.default)


def test_models_presets_sources_and_partitions_are_in_the_tables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    every = in_first_cells("\n".join(page.read_text() for page in PAGES))
    assert {*MODELS, *RESNETS, "auto"} <= every
    assert data_prep(["--help"]) == 0
    sources = {*re.findall(r"^  (\w+) ", capsys.readouterr().out, re.M)} - {"inspect", "verify"}
    assert len(sources) >= 10
    assert sources <= every
    assert data_prep(["digits", "--help"]) == 0
    partitions = re.search(r"\{(auto,[\w,-]+)\}", re.sub(r"[\s│]", "", capsys.readouterr().out))
    assert partitions
    assert {*partitions[1].split(",")} <= every


@pytest.mark.parametrize("path", sorted(PRESET_DIR.glob("*.toml")), ids=lambda path: path.stem)
def test_presets_are_in_the_table(path: Path) -> None:
    data = (ROOT / "docs" / "data.md").read_text()
    assert f"`{path.stem}`" in data
    if path.stem not in ("paper", "author_code"):
        config = parse(["--preset", path.stem])
        row = next(row for row in rows(data) if row[0] == f"`{path.stem}`")
        assert row[2:4] == [config.model, str(config.rounds)]


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 130


def test_the_example_algorithm_trains(tmp_path: Path, shards: Path) -> None:
    """The file of docs/developing.md, taken as `--algorithm path/to/mine.py` takes it."""
    (example,) = blocks((ROOT / "docs" / "developing.md").read_text(), "python")
    path = tmp_path / "mine.py"
    path.write_text(example)
    quick = ["--rounds", "1", "--local-epochs", "1", "--shards", str(shards)]
    config = parse(["--algorithm", str(path), "--mu", "0.2", *quick, "--run-dir", str(tmp_path / "run")])
    result = run(config)
    assert result is not None
    assert config.options == {"mu": 0.2}
    assert {"loss_ce", "loss_mine"} <= result.metrics[0].keys()
    assert algorithms.find(str(path)).__doc__ == "Mine: one line for --help."
