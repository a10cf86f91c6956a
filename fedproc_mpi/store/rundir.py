"""The run directory: which one a run writes, and what makes two runs the same. On rank 0."""

import dataclasses
import itertools
import json
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedproc_mpi import algorithms
from fedproc_mpi.comm import Comm
from fedproc_mpi.config import FIELD_DEFAULTS, RECORDED, Config, read_json
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import flag, settings_of
from fedproc_mpi.identity import own_files, package_sha256
from fedproc_mpi.placement.devices import Placement
from fedproc_mpi.shards import Shards
from fedproc_mpi.store.files import CHECKPOINT, CONFIG, METRICS, MODEL, PREVIOUS, SUMMARY, save_json
from fedproc_mpi.store.lock import RunLock, refuse_if_written
from fedproc_mpi.terminal import say

TOP = Path("runs")


def open_run_dir(
    config: Config, shards: Shards, comm: Comm, placements: Sequence[Placement]
) -> tuple[Path, RunLock | None]:
    """The directory of this run, made if need be, and its lock, or None where the run is finished.

    A new one without --resume; with it, --run-dir or the newest unfinished run of the same config.
    Raises UserError when the directory holds another run, is being written, or cannot be written.
    """
    found = _existing(config, shards.fingerprint)
    if found is not None and is_finished(found):
        return found, None
    path = found or (Path(config.run_dir) if config.run_dir else None)
    lock = None
    try:
        if path is None:
            path = _new_directory(config)
        path.mkdir(parents=True, exist_ok=True)
        lock = RunLock(path)
        if is_finished(path) or (found is None and (path / CONFIG).exists()):
            lock.release()  # while this one waited for the lock, another began or ended the run
            return open_run_dir(config, shards, comm, placements)
        now = _environment(comm, placements)
        save_json(_resumed(path, config, now) if found else _record(config, shards, now), path / CONFIG)
    except (OSError, UserError) as error:
        if lock is not None:
            lock.release()
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path or TOP}: cannot write there: {error.strerror}") from error
    return path, lock


def is_finished(run_dir: Path) -> bool:
    """Whether all that a run leaves is there."""
    return (run_dir / SUMMARY).exists() and (run_dir / MODEL).exists()


def _existing(config: Config, fingerprint: str) -> Path | None:
    """The run to go on with; None: this is a new one."""
    if not config.run_dir:
        return _newest_unfinished(config, fingerprint) if config.resume else None
    path = Path(config.run_dir)
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path} is a link that leads nowhere; make what it points to, or choose another")
    if not (path / CONFIG).exists():
        traces = (SUMMARY, CHECKPOINT, PREVIOUS, METRICS)
        if others := [name for name in traces if (path / name).exists()]:
            raise UserError(f"{path} holds {', '.join(others)} of a run, but no {CONFIG}: choose another")
        if config.resume:
            say(f"fedproc_mpi: --resume: no run in {path}: starting anew")
        return None
    if not config.resume:
        refuse_if_written(path)
        if is_finished(path):
            raise UserError(
                f"{path} already holds a finished run; choose another, or --resume shows its result"
            )
        raise UserError(f"{path} already holds an unfinished run; add --resume to go on, or choose another")
    if differing := differences(path, config, fingerprint):
        hint = ""
        if (
            "--rounds was" in differing
        ):  # α and more follow from T: a longer run differs from its first round on
            hint = "; a run's length is part of its result: start a new run, in another directory"
        raise UserError(f"{path}: --resume with a config that differs: {differing}{hint}")
    return path


def _newest_unfinished(config: Config, fingerprint: str) -> Path | None:
    unfinished = [p.parent for p in TOP.glob(f"*/{CONFIG}") if not is_finished(p.parent)]
    unfinished.sort(key=lambda p: ((p / CONFIG).stat().st_mtime, p.name), reverse=True)
    differing = {path: differences(path, config, fingerprint) for path in unfinished}
    same = [path for path, difference in differing.items() if not difference]
    if not unfinished:
        say(f"fedproc_mpi: --resume: no unfinished run in {TOP}/: starting anew")
    elif not same:
        nearest = min(unfinished, key=lambda path: differing[path].count("; "))  # of several the newest
        raise UserError(
            f"--resume: no unfinished run of this config; {nearest} differs: {differing[nearest]}"
        )
    return same[0] if same else None


def _new_directory(config: Config) -> Path:
    """Made here, so that of two runs that start in the same second each gets its own."""
    stem = (
        f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(config.algorithm).stem[:60]}-{Path(config.shards).stem[:60]}"
    )
    for i in itertools.count():
        path = TOP / (f"{stem}-{i}" if i else stem)
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError


# ---- config.json -----------------------------------------------------------------------------------------


def _record(config: Config, shards: Shards, environment: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json holds: all that the result depends on, and where the run was started."""
    header = dataclasses.asdict(shards.header) | {"fingerprint": shards.fingerprint}
    header["validation_samples"] = len(shards.val_set) if shards.val_set else 0
    own = {**config.flat(), "run_dir": "", "resume": False, "shards_copy": ""}
    return own | {"data": header, "files": own_files(config), "environment": environment}


def _resumed(run_dir: Path, config: Config, environment: Mapping[str, Any]) -> dict[str, Any]:
    """The run's record, which now tells where it goes on as well as where it ran before."""
    record = read_json(run_dir / CONFIG)
    before = record.get("environment", {})
    earlier = before.pop("earlier", [])
    if before != json.loads(json.dumps(environment)):
        earlier = [*earlier, before]
    now = {**environment, "earlier": earlier} if earlier else environment
    return {**record, "on_diverged": config.on_diverged, "environment": now}


def differences(run_dir: Path, config: Config, fingerprint: str) -> str:
    """The result fields in which a run's config differs, in words; '' where there is none.

    A run records the device that its ranks found; where they have not looked yet, `auto` differs from none.
    As long as --on-diverged stop has not stopped a run, `exclude` would have given the same.
    """
    record = read_json(run_dir / CONFIG)
    if "data" not in record:
        raise UserError(f"{run_dir / CONFIG} is no run's record: choose another --run-dir")
    old = {**FIELD_DEFAULTS, **record}  # a field may be younger than the run, and so may an option
    with suppress(UserError):  # a file of the user's own that is no algorithm is told where it is used
        old = {name: f.default for name, f in settings_of(algorithms.find(config.algorithm)).items()} | old
    unknown = sorted(set(old) - set(config.flat()) - set(RECORDED))
    words = [f"{key} is a setting of another version of fedproc_mpi" for key in unknown]
    words += [
        f"{flag(key)} was {old.get(key)!r}, now {value!r}"
        for key, value in config.result_fields().items()
        if old.get(key) != value
        and not (key == "device" and "auto" in (old.get(key), value))
        and not (key == "on_diverged" and (old.get(key), value) == ("stop", "exclude"))
    ]
    if chooses_by_validation(record) and old["eval_every"] != config.eval_every:
        which = "which rounds are validated decides which one is the best"
        words.append(f"--eval-every was {old['eval_every']}, now {config.eval_every} ({which})")
    if old.get("data", {}).get("fingerprint") != fingerprint:
        words.append("the shards' contents changed")
    before = old.get("files", {})
    words += [
        f"{name} has changed" for name, sha in own_files(config).items() if before.get(name, sha) != sha
    ]
    return "; ".join(words)


def chooses_by_validation(record: Mapping[str, Any]) -> bool:
    """Whether the run of this config.json has a validation set."""
    return bool(record["data"].get("validation_samples"))


def _environment(comm: Comm, placements: Sequence[Placement]) -> dict[str, Any]:
    """Versions of what can change the last bits, and how the run was started."""
    facts: dict[str, Any] = {"fedproc_mpi": "not installed"}
    with suppress(PackageNotFoundError):
        facts["fedproc_mpi"] = version("fedproc_mpi")
    facts |= {"source_sha256": package_sha256(), "numpy": np.__version__}
    facts |= {"python": platform.python_version(), "torch": torch.__version__, **comm.versions()}
    facts["cpu"] = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    facts |= {"transport": comm.name, "ranks": len(placements)}
    return {**facts, "placements": [dataclasses.asdict(placement) for placement in placements]}
