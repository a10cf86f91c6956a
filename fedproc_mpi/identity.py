"""What the result depends on besides flags: shards, source files, versions. Ranks that differ are refused."""

import hashlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fedproc_mpi.comm import Comm
from fedproc_mpi.config import Config
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import flag

OF_THE_RANK = ("shards", "shards_copy")  # paths, which may differ; the fingerprint may not


def require_same(comm: Comm, host: str, config: Config, fingerprint: str) -> None:
    """Compare what the ranks hold. Collective; raises UserError, agreed, that names what differs and where.

    Without this, ranks with another data set, an edited package or another torch give a wrong model, which
    looks like a right one.
    """
    import numpy as np
    import torch  # here: the doctor uses this module before it tries torch

    facts = {
        "the shards' contents": fingerprint[:12],
        "the package fedproc_mpi": package_sha256()[:12],
        "torch": torch.__version__,
        "NumPy": np.__version__,
        **{flag(key): repr(value) for key, value in config.flat().items() if key not in OF_THE_RANK},
        **{name: sha[:12] for name, sha in own_files(config).items()},
    }
    found = differences(comm.exchange((host, facts)))
    if found:
        words = "; ".join(f"{name} ({where})" for name, where in found.items())
        raise UserError(
            f"not the same on all ranks: {words}; that would give a wrong model: put the same files "
            "and environment on all hosts",
            agreed=True,
        )


def differences(views: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
    """What differs among the ranks, by name, in words. views: (host, facts) by rank."""
    found = {}
    for name in dict.fromkeys(name for _, facts in views for name in facts):
        owners: dict[tuple[str, str], list[int]] = {}
        for rank, (host, facts) in enumerate(views):
            owners.setdefault((facts.get(name) or "none", host), []).append(rank)
        if len({value for value, _ in owners}) > 1:
            told = (f"{ranks_in_words(ranks)} on {host}: {value}" for (value, host), ranks in owners.items())
            found[name] = ", ".join(told)
    return found


def ranks_in_words(numbers: Sequence[int], word: str = "rank") -> str:
    """`rank 3`, or `ranks 0-3,5`."""
    return f"{word}{'s' * (len(numbers) != 1)} {span(numbers)}"


def span(numbers: Iterable[int]) -> str:
    """0-3,5 for 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def package_sha256() -> str:
    """SHA-256 over this package's own source files, by name and content."""
    digest, root = hashlib.sha256(), Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}|".encode() + path.read_bytes())
    return digest.hexdigest()


def own_files(config: Config) -> dict[str, str]:
    """SHA-256 of the user's own files on which the result depends as well: algorithm, models, --init."""
    found = {}
    for key, value in config.result_fields().items():
        for word in value.split(",") if isinstance(value, str) else ():
            module, colon, _ = word.rpartition(":")
            path = word if word.endswith(".py") or key == "init" else module if module.endswith(".py") else ""
            with suppress(ImportError, ValueError):
                spec = importlib.util.find_spec(module) if colon and not path else None
                path = (spec and spec.origin) or path
            if Path(path).is_file():
                found[word] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return found
