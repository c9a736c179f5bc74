"""The learner on one device: rows in, one optimiser step per minibatch, metrics out.

It knows no method: a row's tokens and their numbers are all that it sees. A minibatch's loss is the share of the whole
update's loss that its rows carry, times the number of minibatches. So each token weighs the same whichever minibatch it
falls into, minibatches may be uneven, and policy gradient, cross-entropy and KL keep their proportion.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from agentcredit.config import LossConfig, OptimConfig, TrainConfig
from agentcredit.errors import RunFailed
from agentcredit.training.branches import branch_logprobs
from agentcredit.training.logprobs import CHUNK_ELEMENTS, TokenScorer
from agentcredit.training.loss import PolicyTerms, carries_signal, check, kl_k3, policy_terms, weights_of
from agentcredit.training.optimizer import MasterAdamW, learning_rate
from agentcredit.training.packing import MicroBatch, collate, families, forks_of, lines_of, materialise, plan
from agentcredit.training.rows import Row
from agentcredit.training.tally import Tally

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class _Streams:
    """A micro-batch's policy gradient and cross-entropy as losses, and what they are made of (of its sampled tokens)."""

    sampled: torch.Tensor
    logprob: torch.Tensor
    weight: torch.Tensor
    old: torch.Tensor
    terms: PolicyTerms
    policy: torch.Tensor
    cross_entropy: torch.Tensor


class Learner:
    """Trains a causal language model of transformers on rows.

    The model is trained in place, so a rollout policy that shares it has the new weights at once. It runs without
    dropout, as the rollout does: the ratio compares like with like. With ``loss.kl`` > 0 the weights at construction are
    kept as the frozen reference; construct from the initial weights and then load a checkpoint.

    Args:
        model: the model, already on ``device``.
        loss: streams and clipping.
        optim: AdamW.
        train: epochs, minibatches and the micro-batches' token budget.
        temperature: the rollout's sampling temperature; all log-probabilities are at it.
        device: where micro-batches run.
        chunk_elements: float32 elements of one chunk of logits (:mod:`agentcredit.training.logprobs`).

    Raises:
        UsageError: a loss value without meaning, or a model whose logits are not its head on its hidden states.
    """

    def __init__(
        self,
        model: Any,
        loss: LossConfig,
        optim: OptimConfig,
        train: TrainConfig,
        temperature: float = 1.0,
        device: str = "cpu",
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> None:
        check(loss)
        self.model = model.to(device)
        self.loss = loss
        self.train = train
        self.optim = optim
        self._scorer = TokenScorer(self.model, temperature, chunk_elements)
        self._reference: TokenScorer | None = None
        if loss.kl > 0:
            frozen = copy.deepcopy(self.model).eval().requires_grad_(False)
            self._reference = TokenScorer(frozen, temperature, chunk_elements)
        self._optimizer = MasterAdamW(self.model, optim)

    def update(self, rows: Sequence[Row], step: int) -> dict[str, float]:
        """Trains on one step's rows: ``epochs`` passes of ``minibatches`` optimiser steps each.

        Rows that cannot move the weights (no advantage, no cross-entropy weight, no KL) count in the denominators and
        skip the model; an update of only such rows makes no optimiser step, which would move along old momentum.

        Args:
            rows: all rows of the step; old log-probabilities are the rollout's.
            step: training step from 0; it fixes the learning rate and the split into minibatches.

        Returns:
            Metrics. Over the sampled tokens that went through the model, all passes: ``ratio_mean``, ``ratio_max``,
            ``clip_high``, ``clip_low``, ``clip_dual`` (shares), ``entropy`` (nats), ``kl`` (k3, nats, with a
            reference). ``loss`` and its parts ``loss_policy``, ``loss_ce``, ``loss_kl``: mean of the passes.
            ``logprob_gap_mean``, ``logprob_gap_max``: |learner − rollout| before the first optimiser step, 0 on an
            exact engine. ``grad_norm``: mean before clipping. Where measured (``train.stream_norms_every``), those of the
            first minibatch by stream: ``grad_norm_pg``, ``grad_norm_ce``, and their ratio ce / pg as ``grad_norm_ratio``
            where the policy gradient is not 0. ``lr``, ``optimizer_steps``, ``tokens`` (real tokens
            through the model in one pass), ``tokens_sampled``, ``tokens_ce``, ``rows``, ``rows_skipped``.

        Raises:
            RunFailed: the gradient is not finite; the weights are those before that optimiser step.
            ValueError: a row does not hold together (:func:`agentcredit.training.packing.collate`).
        """
        units, forks = families(rows), self._forks(rows)
        rows = materialise(rows)
        weights = weights_of(rows, self.loss)
        active = [carries_signal(row) or (self._reference is not None and bool(row.sampled.any())) for row in rows]
        units = [kept for unit in units if (kept := [index for index in unit if active[index]])]
        n_minibatches = max(1, min(self.train.minibatches, len(units)))
        lr = learning_rate(step, self.optim)
        tally = Tally()
        norms: list[float] = []
        of_streams: dict[str, float] = {}
        every = self.train.stream_norms_every
        measured = bool(every) and step % every == 0 and any(row.ce_weight.any() for row in rows)
        with self._without_dropout():
            reference = self._score(self._reference, rows, units, forks) if self._reference is not None else None
            for epoch in range(self.train.epochs if units else 0):
                order = np.random.default_rng([step, epoch]).permutation(len(units))
                for share in np.array_split(order, n_minibatches):
                    batches = self.pack(rows, weights, [units[unit] for unit in share], forks)
                    if measured and not norms:
                        of_streams = self.stream_norms(batches, n_minibatches)
                    self._optimizer.zero_grad()
                    self.accumulate(batches, n_minibatches, reference, tally, first=not norms)
                    norms.append(self._step(step, lr))
        return (
            tally.metrics(self.train.epochs)
            | of_streams
            | {
                "grad_norm": float(np.mean(norms)) if norms else 0.0,
                "lr": lr,
                "optimizer_steps": float(len(norms)),
                "tokens": float(sum(len(row) for row, runs in zip(rows, active, strict=True) if runs)),
                "tokens_sampled": float(sum(row.sampled.sum() for row in rows)),
                "tokens_ce": float(sum((row.ce_weight != 0).sum() for row in rows)),
                "rows": float(len(rows)),
                "rows_skipped": float(len(rows) - sum(active)),
            }
        )

    def logprobs(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Log-probabilities under the current weights: per row float32 [N], 0 where not sampled.

        To be compared with ``rollout_logprobs``: they agree where the episode is scored by the weights that played it.
        """
        with self._without_dropout():
            if self._forks(rows) is not None:
                return branch_logprobs(self.model, self._scorer, rows, self.train.tokens_per_microbatch)
            units = [kept for unit in families(rows) if (kept := [i for i in unit if rows[i].sampled.any()])]
            scores = self._score(self._scorer, materialise(rows), units, None)
        return [score[len(score) - len(row) :] for score, row in zip(scores, rows, strict=True)]

    def state_dict(self) -> dict[str, dict[str, torch.Tensor]]:
        """``model`` and ``optimizer``: flat names to live tensors, as :func:`agentcredit.training.checkpoint.save` takes."""
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Restores what :meth:`state_dict` gave; the reference stays what it was."""
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def pack(
        self,
        rows: Sequence[Row],
        weights: Sequence[np.ndarray],
        units: Sequence[Sequence[int]],
        forks: Sequence[tuple[int, int] | None] | None = None,
    ) -> list[MicroBatch]:
        """Micro-batches of the rows named by ``units``, within the token budget; with ``forks`` contexts are shared."""
        by_unit = lines_of(units, [len(row) for row in rows], forks)
        lines = [line for unit in by_unit for line in unit]
        ends = np.cumsum([0, *(len(unit) for unit in by_unit)]).tolist()
        together = [list(range(a, b)) for a, b in pairwise(ends)]
        context = {line.rows[0] for line in lines} - {index for unit in units for index in unit}
        return [
            collate(rows, weights, [index for line in batch for index in lines[line].rows], forks, context)
            for batch in plan(lines, together, self.train.tokens_per_microbatch)
        ]

    def accumulate(
        self,
        batches: Sequence[MicroBatch],
        scale: float,
        reference: Sequence[np.ndarray] | None,
        tally: Tally,
        first: bool = False,
    ) -> None:
        """Adds the gradient of ``scale`` times the batches' share of the loss.

        Args:
            batches: micro-batches; how rows are spread over them changes nothing but rounding.
            scale: factor of the loss, the number of minibatches.
            reference: per row of the update float [N] log-probabilities under the reference, or None without KL.
            tally: receives the sums that metrics are made of.
            first: no optimiser step was made yet, so log-probabilities should equal the rollout's.
        """
        for batch in batches:
            logprob, entropy = self._scorer(batch)
            total = self._loss(batch, logprob, entropy, reference, tally, first)
            (scale * total).backward()
            self._optimizer.collect()

    def stream_norms(self, batches: Sequence[MicroBatch], scale: float) -> dict[str, float]:
        """Norms of the gradients that policy gradient and cross-entropy have each by itself; no weight changes.

        Each stream goes through the model once more, from which all gradients are forgotten.
        """
        norms: dict[str, float] = {}
        for name in ("pg", "ce"):
            self._optimizer.zero_grad()
            for batch in batches:
                parts = self._streams(batch, self._scorer(batch)[0])
                (scale * (parts.policy if name == "pg" else parts.cross_entropy)).backward()
                self._optimizer.collect()
            norms[f"grad_norm_{name}"] = self._optimizer.norm()
        self._optimizer.zero_grad()
        ratio = {"grad_norm_ratio": norms["grad_norm_ce"] / norms["grad_norm_pg"]} if norms["grad_norm_pg"] else {}
        return norms | ratio

    def _streams(self, batch: MicroBatch, logprob_K: torch.Tensor) -> _Streams:
        import torch

        def tensor(values: np.ndarray) -> torch.Tensor:
            return torch.as_tensor(values, device=logprob_K.device)

        sampled = tensor(batch.sampled_K)
        logprob, weight = logprob_K[sampled], tensor(batch.loss_weight_K)[sampled]
        old = tensor(batch.rollout_logprob_K)[sampled]
        terms = policy_terms(logprob, old, tensor(batch.advantage_K)[sampled], self.loss)
        cross_entropy = -(tensor(batch.ce_weight_K) * logprob_K).sum()
        return _Streams(sampled, logprob, weight, old, terms, (weight * terms.loss).sum(), cross_entropy)

    def _loss(
        self,
        batch: MicroBatch,
        logprob_K: torch.Tensor,
        entropy_K: torch.Tensor,
        reference: Sequence[np.ndarray] | None,
        tally: Tally,
        first: bool,
    ) -> torch.Tensor:
        """The batch's part of the loss: policy gradient + cross-entropy + KL."""
        import torch

        parts = self._streams(batch, logprob_K)
        total = parts.policy + parts.cross_entropy
        tally.add_sums(loss_policy=parts.policy, loss_ce=parts.cross_entropy)
        if reference is not None:
            anchor = torch.as_tensor(batch.gather(reference), device=logprob_K.device)[parts.sampled]
            kl = kl_k3(parts.logprob, anchor)
            divergence = self.loss.kl * (parts.weight * kl).sum()
            total = total + divergence
            tally.add_sums(loss_kl=divergence)
            tally.add_tokens(kl=kl)
        gap = (parts.logprob - parts.old).abs() if first else None
        tally.add_policy(parts.terms, entropy_K[parts.sampled], gap)
        return total

    def _step(self, step: int, lr: float) -> float:
        norm = self._optimizer.clip()
        if not np.isfinite(norm):
            self._optimizer.zero_grad()
            raise RunFailed(
                f"The gradient of training step {step} is not finite ({norm}); lower optim.lr (now {self.optim.lr:g}), "
                "or look for broken weights in the model, and repeat the command to continue from the last checkpoint."
            )
        self._optimizer.step(lr)
        return norm

    def _forks(self, rows: Sequence[Row]) -> list[tuple[int, int] | None] | None:
        """Where rows continue others, if contexts are to be computed once and the model's attention takes a mask for it."""
        if not self.train.share_prefixes or not self._scorer.takes_masks or all(row.prefix is None for row in rows):
            return None
        return forks_of(rows)

    def _score(
        self,
        scorer: TokenScorer,
        rows: Sequence[Row],
        units: Sequence[Sequence[int]],
        forks: Sequence[tuple[int, int] | None] | None,
    ) -> list[np.ndarray]:
        """Per row float32 [N]: log-probabilities of its sampled tokens, 0 elsewhere."""
        import torch

        scores = [np.zeros(len(row), dtype=np.float32) for row in rows]
        nothing = [np.zeros(len(row)) for row in rows]
        for batch in self.pack(rows, nothing, units, forks):
            with torch.no_grad():
                values = scorer(batch)[0].cpu().numpy()
            for r, index in enumerate(batch.index_R):
                here = batch.sampled_K & (batch.row_K == r)
                scores[index][batch.position_K[here]] = values[here]
        return scores

    @contextmanager
    def _without_dropout(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(training)
