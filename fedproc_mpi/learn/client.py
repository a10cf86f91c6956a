"""Local work on one rank: a client's training, its class means.

Shapes: B batch, C channels, H, W image, D width of z, K classes, P parameters, S floats of the model's
state.
"""

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc_mpi.clock import Clock
from fedproc_mpi.config import DEFAULT_LR, Config
from fedproc_mpi.errors import UserError
from fedproc_mpi.learn.data import Batches, ClientData, cuts
from fedproc_mpi.learn.flat import FlatModel
from fedproc_mpi.learn.models import MOST_IN_A_BLOCK, has_batchnorm
from fedproc_mpi.learn.seeds import seed_for, torch_generator
from fedproc_mpi.placement.devices import autocast

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """What a loss may read: images x_BCHW (float32), labels y_B (int64), z_BD, logits_BK."""

    x_BCHW: Tensor
    y_B: Tensor
    z_BD: Tensor
    logits_BK: Tensor


@dataclass(frozen=True)
class Round:
    """Round t of T, t from 0, of a run with m clients."""

    t: int
    total: int
    num_clients: int = 1


Tensors = Mapping[str, Tensor]
LossParts = Mapping[str, tuple[float, Tensor]]  # name → (weight, value); the loss is Σ weight·value
Loss = Callable[[Batch], LossParts]
GradientHook = Callable[[Tensor, Tensor], None]  # (grad_P, w_P): may change the gradient in place


def weighted_sum(parts: LossParts) -> Tensor:
    """Σ weight·value; a weight of 1 costs no operation."""
    terms = [value if weight == 1 else weight * value for weight, value in parts.values()]
    return functools.reduce(torch.add, terms)


def balanced_weights(y_N: Tensor, num_classes: int) -> Tensor:
    """Weights (K,) by which each class that the labels hold counts the same: N/(held classes · its samples).

    The mean over the samples is 1. A class that is not there has weight 1.
    """
    counts_K = torch.bincount(y_N, minlength=num_classes)
    weights_K = len(y_N) / (int((counts_K > 0).sum()) * counts_K.clamp(min=1))
    return torch.where(counts_K > 0, weights_K, torch.ones_like(weights_K))


def lr_factor(config: Config, t: int) -> float:
    """What the learning rate of round t is multiplied with: a function of the round alone.

    In W warm-up rounds (t + 1)/(W + 1). Of the T - W rounds behind them s = (t - W)/(T - W) are over: cosine,
    (1 + cos πs)/2 (Loshchilov & Hutter 2017, Eq. 5, without restarts); step, 0.1 from s = 1/2 and 0.01 from
    s = 3/4 on.
    """
    if t < config.warmup:
        return (t + 1) / (config.warmup + 1)
    over = (t - config.warmup) / (config.rounds - config.warmup)
    if config.lr_schedule == "cosine":
        return (1 + math.cos(math.pi * over)) / 2
    if config.lr_schedule == "step":
        return 1.0 if over < 0.5 else 0.1 if over < 0.75 else 0.01
    return 1.0


class Trainer:
    """A rank's one model and optimizer, used for its clients one after the other.

    block: samples per block of class means and evaluation. clock: gets the seconds of `train` and of the
    class means, `prototypes`. steps: optimizer steps of the last `train`.
    """

    def __init__(
        self,
        config: Config,
        model: FlatModel,
        batches: Batches,
        num_classes: int,
        embedding: int,
        block: int = MOST_IN_A_BLOCK,
        clock: Clock | None = None,
    ) -> None:
        self.config, self.model, self.batches = config, model, batches
        self._start_lr = config.lr or DEFAULT_LR
        self.lr = self._start_lr  # of the last round that was trained
        self.num_classes, self.embedding, self.block = num_classes, embedding, block
        self.device = model.vector_S.device
        self.clock = clock or Clock()
        self.steps = 0
        self._momentum_P = torch.zeros_like(model.grad_P)
        self._twins: dict[str, FlatModel] = {}
        self._min_batch = 2 if has_batchnorm(model.module) else 1
        if config.batch_size < self._min_batch:
            raise UserError(
                f"--batch-size {config.batch_size}: one sample has no batch statistics, and the model has "
                "BatchNorm; at least 2, or a model without (--norm group for the ResNets)"
            )

    def train(
        self, data: ClientData, start: Tensors, t: int, loss: Loss, correct_gradient: GradientHook
    ) -> dict[str, float]:
        """Train a client's data for E epochs from the model in `start` ("model", "counters").

        Returns the mean of the loss ("total") and of each of its parts over the round's samples.
        """
        cuda = [self.device] if self.device.type == "cuda" else []
        with self._timed("train"), torch.random.fork_rng(devices=cuda):
            # Dropout draws from torch's own generators: keyed as well, never carried from client to client.
            torch.manual_seed(seed_for(self.config.seed, "torch", t, data.client))
            self.model.load(start["model"], start["counters"])
            self.lr = self._start_lr * lr_factor(self.config, t)
            return self._epochs(data, t, loss, correct_gradient)

    def _epochs(
        self, data: ClientData, t: int, loss: Loss, correct_gradient: GradientHook
    ) -> dict[str, float]:
        config, model = self.config, self.model
        w_P = model.vector_S[: model.num_params]
        w_P.grad = model.grad_P
        adamw = None
        if config.optimizer == "adamw":  # on the flat vector: one tensor to step
            adamw = torch.optim.AdamW([w_P], lr=self.lr, weight_decay=config.weight_decay, foreach=False)
        generator = torch_generator(config.seed, "shuffle", t, data.client)
        self._momentum_P.zero_()
        values: dict[str, list[Tensor]] = {}  # per step; read at the end: no GPU waits
        sizes: list[int] = []
        # A lone sample has no batch statistics: BatchNorm then uses (and keeps) the running ones.
        model.module.train(data.num_examples >= self._min_batch)
        for _ in range(config.local_epochs):
            drop_last = config.last_batch == "drop"
            for x_BCHW, y_B in self.batches.epoch(
                data, config.batch_size, generator, drop_last, self._min_batch
            ):
                with autocast(config, self.device):
                    z_BD, logits_BK = model.module(x_BCHW)
                    parts = loss(Batch(x_BCHW, y_B, z_BD.float(), logits_BK.float()))
                    total = weighted_sum(parts)
                model.grad_P.zero_()
                total.backward()
                correct_gradient(model.grad_P, w_P)
                if config.clip_norm:
                    torch.nn.utils.clip_grad_norm_([w_P], config.clip_norm)
                if adamw is None:
                    self._step(w_P)
                else:
                    adamw.step()
                sizes.append(len(y_B))
                for name, value in [("total", total), *((n, v) for n, (_, v) in parts.items())]:
                    values.setdefault(name, []).append(value.detach())
        self.steps = len(sizes)
        size_N = torch.tensor(sizes, dtype=torch.float64)
        return {
            name: float(torch.stack(steps).cpu().double() @ size_N / size_N.sum())
            for name, steps in values.items()
        }

    @torch.no_grad()
    def _step(self, w_P: Tensor) -> None:
        """SGD with momentum and weight decay, as torch.optim.SGD does it."""
        config, grad_P = self.config, self.model.grad_P
        if config.weight_decay:
            grad_P.add_(w_P, alpha=config.weight_decay)
        if config.momentum:
            grad_P = self._momentum_P.mul_(config.momentum).add_(grad_P)
        w_P.add_(grad_P, alpha=-self.lr)

    @torch.no_grad()
    def class_means(
        self, data: ClientData, mode: str = "eval", t: int = 0, unit: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Mean z of each class under the present weights: (means_KD float32, counts_K int64).

        eval: all samples, no augmentation, eval mode (FedProc Eq. 5). train: one training epoch's
        batches in train mode, augmented, without the short last one; BatchNorm buffers are left as they
        were. train_bn: the same, and they are left as the pass made them (the author's code). unit: of z/|z|.
        Rows of classes without samples are 0.
        """
        with self._timed("prototypes"):
            sums_KD = torch.zeros(self.num_classes, self.embedding, dtype=torch.float64, device=self.device)
            counts_K = torch.zeros(self.num_classes, dtype=torch.int64, device=self.device)
            buffers = self.model.vector_S[self.model.num_params :].clone(), self.model.counters_N.clone()
            if mode != "eval":
                self.model.module.train(data.num_examples >= self._min_batch)
                generator = torch_generator(self.config.seed, "class means", t, data.client)
                batches = self.batches.epoch(data, self.config.batch_size, generator, True, self._min_batch)
            else:
                self.model.module.eval()
                batches = (
                    (self.batches.normalise(data.x_NCHW[a:b]), data.y_N[a:b])
                    for a, b in cuts(data.num_examples, self.block, False, 1)
                )
            for x_BCHW, y_B in batches:
                z_BD, _ = self.forward(x_BCHW)
                if unit:
                    z_BD = F.normalize(z_BD)
                one_hot_BK = F.one_hot(y_B, self.num_classes)
                sums_KD += one_hot_BK.to(torch.float64).T @ z_BD.to(torch.float64)
                counts_K += one_hot_BK.sum(0)
            if mode != "train_bn":
                self.model.vector_S[self.model.num_params :] = buffers[0]
                self.model.counters_N.copy_(buffers[1])
            return (sums_KD / counts_K.clamp(min=1)[:, None]).float(), counts_K

    @torch.no_grad()
    def forward(self, x_BCHW: Tensor, model: FlatModel | None = None) -> tuple[Tensor, Tensor]:
        """(z_BD, logits_BK), float32, of normalised images under the present weights and mode."""
        with autocast(self.config, self.device):
            z_BD, logits_BK = (model or self.model).module(x_BCHW)
        return z_BD.float(), logits_BK.float()

    def frozen(self, name: str, vector_S: Tensor, counters_N: Tensor) -> Callable[[Tensor], Tensor]:
        """x_BCHW → z_BD of another state of the model: eval mode, no gradient.

        The copy of that name is kept and filled again each time, so a rank holds one per name.
        """
        if name not in self._twins:
            module = copy.deepcopy(self.model.module)
            self._twins[name] = FlatModel(module, self.config.channels_last)
        twin = self._twins[name]
        twin.load(vector_S, counters_N)
        twin.module.eval()
        return lambda x_BCHW: self.forward(x_BCHW, twin)[0]

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        with self.clock.measure(phase):
            yield
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Task:
    """One client's work in one round: all that an algorithm sees of it.

    data: the client's samples. state: what the server sent, by name ("model", "counters", and the
    algorithm's own entries). kept: what the client kept of its last round, empty at its first; replace its
    tensors, do not change them in place. round: t, T and m.
    """

    data: ClientData
    state: Tensors
    kept: Tensors
    round: Round
    trainer: Trainer
    _once: dict[str, Any] = field(default_factory=dict)

    @property
    def num_examples(self) -> int:
        """|D_i|."""
        return self.data.num_examples

    @property
    def model(self) -> FlatModel:
        """The rank's model; after `train` it holds the client's trained one."""
        return self.trainer.model

    def train(
        self,
        loss: Callable[[Batch, "Task"], LossParts],
        correct_gradient: Callable[[Tensor, Tensor, "Task"], None],
        start: Tensors | None = None,
    ) -> dict[str, float]:
        """Local training from the server's model, or from the one in `start` (`Trainer.train`)."""
        return self.trainer.train(
            self.data,
            self.state if start is None else start,
            self.round.t,
            lambda batch: loss(batch, self),
            lambda grad_P, w_P: correct_gradient(grad_P, w_P, self),
        )

    def class_means(
        self, mode: str = "eval", unit: bool = False, of: Tensors | None = None
    ) -> tuple[Tensor, Tensor]:
        """(means_KD, counts_K) of the client's classes under the trained model (`Trainer.class_means`).

        of: under the model in these tensors instead, which is then loaded.
        """
        if of is not None:
            self.model.load(of["model"], of["counters"])
        return self.trainer.class_means(self.data, mode, self.round.t + 1, unit)

    def cross_entropy(self, batch: Batch) -> Tensor:
        """The classifier's cross-entropy, with --label-smoothing and --class-weights; mean over the batch.

        A mean of weighted samples is divided by their weights, as torch does it.
        """
        config, weights_K = self.trainer.config, None
        if config.class_weights == "balanced":
            weights_K = self.once(
                "class weights", lambda: balanced_weights(self.data.y_N, self.trainer.num_classes)
            )
        smoothing = config.label_smoothing
        return F.cross_entropy(batch.logits_BK, batch.y_B, weight=weights_K, label_smoothing=smoothing)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What `make` gives, made at the first call with this name within this task."""
        if name not in self._once:
            self._once[name] = make()
        found: T = self._once[name]
        return found

    def embed(self, name: str, tensors: Tensors, x_BCHW: Tensor) -> Tensor:
        """z_BD of images under another model, in eval mode, without gradient.

        tensors: that model's "model" and "counters", loaded at the first call with this name.
        """
        twin = self.once(name, lambda: self.trainer.frozen(name, tensors["model"], tensors["counters"]))
        return twin(x_BCHW)

    def with_state(self, **entries: Tensor) -> "Task":
        """The same task, some of the server's entries replaced."""
        return replace(self, state={**self.state, **entries})
