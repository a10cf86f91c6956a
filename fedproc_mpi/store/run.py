"""The one owner of what a run leaves: opened at its start, saved to once a round, finished at its end."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from fedproc_mpi.clock import Clock
from fedproc_mpi.errors import UserError
from fedproc_mpi.learn.client import Trainer
from fedproc_mpi.rank import Rank
from fedproc_mpi.store import checkpoint, metrics
from fedproc_mpi.store.clients import NONE, ClientFiles, verify_clients
from fedproc_mpi.store.files import BEST, METRICS, SUMMARY, read_tensors, save_json, save_text
from fedproc_mpi.store.lock import RunLock
from fedproc_mpi.store.model import (
    hashes_over_clients,
    model_hashes,
    save_model,
    save_personal,
)
from fedproc_mpi.store.rundir import open_run_dir
from fedproc_mpi.terminal import complain, say


@dataclass(frozen=True)
class Result:
    """What `run` returns on rank 0: the run directory, the summary, the rounds' lines."""

    run_dir: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


class RunStore:
    """A run's directory, as all ranks use it: rank 0 writes the run's files, a client's rank the client's.

    first_round: the round to go on with. finished: the run was done before, and nothing is written. clients:
    what clients keep. lines: those of metrics.jsonl, on rank 0. To be closed.
    """

    def __init__(self, rank: Rank) -> None:
        """Open or make the directory; on rank 0 fill the state from the checkpoint, where there is one.

        Collective; raises UserError, agreed, when it holds another run, is being written by another process,
        or cannot be written.
        """
        self._rank, self.lines = rank, list[dict[str, Any]]()
        self._lock: RunLock | None = None
        self._best_versions: list[int] = []
        opened: tuple[Path, bool, int, list[list[int]]] | None = None
        with rank.comm.agreed():
            if rank.comm.rank == 0:
                opened = self._open()
        self.run_dir, self.finished, self.first_round, self._kept_versions = rank.comm.share(opened)
        self._saved = self.first_round
        versions = self._kept_versions[0] if self._kept_versions else [NONE] * len(rank.clients)
        room = rank.config.client_cache_mb * 10**6
        self.clients = ClientFiles(self.run_dir, versions, rank.device, room, rank.first_kept, rank.clock)
        if rank.comm.rank == 0 and not self.finished:
            self.clients.scan()
            self.clients.collect_garbage([*self._kept_versions, self._best_versions])

    def _open(self) -> tuple[Path, bool, int, list[list[int]]]:
        """The directory, whether the run is finished, its first round, the checkpoints' client versions."""
        rank, saved = self._rank, None
        run_dir, self._lock = open_run_dir(rank.config, rank.shards, rank.comm, rank.placements)
        if self._lock is None:
            return run_dir, True, 0, []
        try:
            if rank.config.resume:
                saved = checkpoint.load(run_dir, lambda versions: verify_clients(run_dir, versions))
            self.lines = [] if saved is None else saved["lines"]
            # What a killed run wrote after its last checkpoint is done again.
            save_text("".join(map(metrics.text, self.lines)), run_dir / METRICS)
            if saved is not None and (best := self._read_best(run_dir)):
                self._best_versions = best["client_versions"]
        except UserError:
            self.close()
            raise
        if saved is None:
            return run_dir, False, 0, []
        for name, tensor in saved["state"].items():
            rank.state[name].copy_(tensor)
        return run_dir, False, saved["next_round"], [saved["client_versions"], *saved["earlier_versions"]]

    def save(self, line: dict[str, Any], stopping: bool) -> dict[str, Any]:
        """Keep a round's line, with a checkpoint where one is due or the run is stopping. On rank 0.

        Returns the line, now with the seconds of the checkpoint; in the checkpoint itself the last line
        lacks them. Raises UserError where something cannot be written.
        """
        assert self._lock is not None
        self._lock.check()
        self.lines.append(line)
        config, done, clock = self._rank.config, line["round"] + 1, Clock()
        versions, state = list(self.clients.versions), self._rank.state.tensors()
        if metrics.best_line(self.lines) is line:
            checkpoint.save_best(self.run_dir, done, state, versions)
            self._best_versions = versions
        ended_early = self._out_of_patience() and done < config.rounds
        if ended_early:
            say(
                f"fedproc_mpi: no better validation accuracy for {metrics.rounds_since_best(self.lines)} "
                f"round(s): the run ends after round {done} of {config.rounds}"
            )
        ending = stopping or done == config.rounds or ended_early
        if ending or done % config.checkpoint_every == 0:
            checkpoint.save(self.run_dir, done, state, versions, self.lines)
            self._kept_versions, self._saved = [versions, *self._kept_versions][:2], done
        clock.mark("checkpoint")
        line["seconds"]["checkpoint"] = round(clock.total, 4)
        line["round_seconds"] = round(line["round_seconds"] + clock.total, 4)
        metrics.append_line(self.run_dir, line)
        self.clients.collect_garbage([*self._kept_versions, self._best_versions])
        return line

    def ended_early(self) -> bool:
        """Whether --patience has ended the run. Collective."""
        return self._rank.config.patience > 0 and self._rank.comm.share(self._out_of_patience())

    def _out_of_patience(self) -> bool:
        patience = self._rank.config.patience
        return patience > 0 and metrics.rounds_since_best(self.lines) >= patience

    def _read_best(self, run_dir: Path) -> dict[str, Any] | None:
        """What best.pt holds, None where it is not the best round's of `lines`. On rank 0.

        Raises UserError where the file cannot be read just now.
        """
        line, path = metrics.best_line(self.lines), run_dir / BEST
        if line is None:
            return None
        try:
            saved = read_tensors(path)
            # A killed run may have found a better one after its last checkpoint; that round is done again.
            return dict(saved) if saved["next_round"] == line["round"] + 1 else None
        except Exception as error:  # a damaged file can fail in any way inside torch.load
            checkpoint.raise_unless_damaged(path, error)
            lost = "the best model is lost, and its test accuracy cannot be told"
            complain(f"fedproc_mpi: {path} is not whole ({type(error).__name__}): {lost}")
            return None

    @contextmanager
    def best_model(self) -> Iterator[Literal["last", "another", "lost"]]:
        """In a `with` block the model of the best round by validation is the present one. Collective.

        Gives whether that is the last round's, another one, or lost; then the last round's stays.
        """
        rank, line, saved = self._rank, metrics.best_line(self.lines), None
        which: Literal["last", "another", "lost"] = "last"
        with rank.comm.agreed():
            if line is not None and line is not self.lines[-1]:
                saved = self._read_best(self.run_dir)
                which = "another" if saved else "lost"
        which, best_versions = rank.comm.share((which, saved["client_versions"] if saved else []))
        if which != "another":
            yield which
            return
        last, versions = rank.state.buffer.clone(), list(self.clients.versions)
        if saved is not None:
            for name, tensor in saved["state"].items():
                rank.state[name].copy_(tensor)
        rank.comm.broadcast(rank.state.buffer)
        self.clients.versions = best_versions
        yield which
        rank.state.buffer.copy_(last)
        self.clients.versions = versions

    def saved_so_far(self) -> str:
        """What of the run would be left if it ended now, for people; '' but on rank 0."""
        if self._lock is None:
            return ""
        if not self.run_dir.is_dir():
            return f"{self.run_dir} is gone"
        done = f"{self._saved} of {self._rank.config.rounds} rounds"
        return f"saved in {self.run_dir}: {done}; --resume goes on"

    def finish(self, final: Mapping[str, Any], best: Mapping[str, Any], **facts: Any) -> Result | None:
        """Write model.pt and summary.json; the result on rank 0. Collective.

        final, best: as for `metrics.summarise`.
        """
        hashes = self._save_personal_models() if self._rank.algorithm.personal else self._save_model()
        if hashes is None:
            return None
        model_sha256, weights_sha256 = hashes
        facts |= {"model_sha256": model_sha256, "weights_sha256": weights_sha256}
        facts |= {"resumed_at_round": self.first_round or None}
        summary = metrics.summarise(self._rank.config, self.lines, final, best, facts)
        save_json(summary, self.run_dir / SUMMARY)
        return Result(self.run_dir, summary, self.lines)

    def finished_result(self) -> Result | None:
        """The result of a run that was finished before. On rank 0, None elsewhere."""
        if self._rank.comm.rank != 0:
            return None
        return Result(self.run_dir, metrics.read_summary(self.run_dir), metrics.read_metrics(self.run_dir))

    def personal_trainer(self, client: int) -> Trainer:
        """The trainer of a client's kind, with the client's own model loaded."""
        trainer, kept = self._rank.trainer_of(client), self.clients.load(client)
        trainer.model.load(kept["model"], kept["counters"])
        return trainer

    def close(self) -> None:
        """Let others write the directory."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _save_model(self) -> tuple[str, str] | None:
        """The global model and its hashes, on rank 0."""
        rank, state, model = self._rank, self._rank.state, self._rank.trainer.model
        if rank.comm.rank != 0:
            return None
        model.load(state["model"], state["counters"])
        tensors = {k: v.cpu().contiguous().clone() for k, v in model.module.state_dict().items()}
        save_model(self.run_dir, len(self.lines), tensors, self._server_entries())
        return model_hashes(tensors, self._prototypes())

    def _save_personal_models(self) -> tuple[str, str] | None:
        """The clients' models stay in their files; model.pt names them. Hashes on rank 0. Collective."""
        rank, versions, mine = self._rank, self.clients.versions, {}
        never_drawn = {k for k, version in enumerate(versions) if version == NONE}
        for k in rank.share_of_all():
            if k in never_drawn:  # what it starts with is its model
                self.clients.save(k, rank.config.rounds, self.clients.load(k))
            mine[k] = model_hashes(self.personal_trainer(k).model.module.state_dict(), self._prototypes())
        reports = rank.comm.collect(mine)
        self.clients.advance(never_drawn, rank.config.rounds)
        if reports is None:
            return None
        kinds = [rank.algorithm.model_of(rank.config, k) for k in range(len(versions))]
        save_personal(self.run_dir, len(self.lines), versions, kinds, self._server_entries())
        return hashes_over_clients({k: hashes for report in reports for k, hashes in report.items()})

    def _server_entries(self) -> dict[str, Tensor]:
        """What the server holds besides the model."""
        return {k: v for k, v in self._rank.state.tensors().items() if k not in ("model", "counters")}

    def _prototypes(self) -> dict[str, Tensor]:
        return {k: v for k, v in self._server_entries().items() if k == "prototypes"}
