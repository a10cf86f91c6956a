"""mkdocs hooks: the README and other files outside docs/ become pages of the site, and links follow them.

On a forge the same files are read where they lie, so their links are relative to the repository's folders.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = (
    *("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "CITATION.cff"),
    *("results/*.md", "results/*/*.png", "results/*/report/report.md", "results/*/report/*.png"),
    *("examples/*/*.sh", "examples/*/*.ipynb"),
)
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/: the README as the first page, the others under their own names."""
    files.append(File.generated(config, "index.md", abs_src_path=str(ROOT / "README.md")))
    for path in sorted(path for pattern in OUTSIDE for path in ROOT.glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The links of a page, from where its file lies in the repository to where the target is in the site."""
    here = page.file.src_uri
    source = Path(page.file.abs_src_path).relative_to(ROOT).as_posix()

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        target = "index.md" if target == "README.md" else target.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    return LINK.sub(moved, markdown)
