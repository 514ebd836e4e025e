"""One model that a client trains: an adapter over a shared base or a whole copy of it, its optimizer, and the gradient gathered so far.

A call changes the model wholly or not at all: what is refused, or comes to a number that is not finite, leaves
weights, moments and gradient as they were. The computation is the learner's: packed rows, adapter, AdamW.

Axes: N tokens of a datum, C scored tokens of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rollout.learner.checkpoint import load_optimizer
from rollout.learner.config.optimizer import OptimizerSettings
from rollout.learner.forward.packed_rows import (
    PackedRow,
    SequenceTokens,
    build_sequence_row,
    token_logprobs,
)
from rollout.learner.hash_chain import digest_state
from rollout.learner.model.adapter import LoraSettings, add_adapter
from rollout.learner.model.optim import build_optimizer
from rollout.learner.model.parallel import Parallel
from rollout.learner.model.policy import Policy
from rollout.service.calls import (
    ALPHA,
    AdapterAsk,
    ForwardBackward,
    LossAnswer,
    OptimStep,
    StepAnswer,
)
from rollout.service.refusals import CallRefused
from rollout.service.training.bases import TrainingBase
from rollout.service.training.checks import CheckedDatum, CheckedLoss, check_loss, check_step
from rollout.service.training.losses import ScoredTokens

ROW_TOKENS_MAX = 8192
"""Tokens computed in one pass; a longer sequence has a pass of its own."""

WEIGHT, MOMENT, GRADIENT = "weight/", "moment/", "gradient/"
NUM_GATHERED = "num_gathered"
"""Of what each tensor of a state is."""
TENSORS_HELD = 4
"""Beside each trained one its two moments and its gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """Per datum, detached, float32 [N]."""

    logprobs: list[torch.Tensor]
    losses: list[torch.Tensor]


class TrainedModel:
    """Owns what is trained, its moments and its gathered gradient. Calls come one at a time, from one thread.

    ``ask`` None: all weights are trained.
    """

    def __init__(self, base: TrainingBase, ask: AdapterAsk | None) -> None:
        self.base = base
        self.ask = ask
        model = base.build(shares=ask is not None)
        if ask is not None:
            lora = LoraSettings(rank=ask.rank, alpha=ALPHA, targets=ask.targets)
            add_adapter(model, lora, ask.seed)
        self._policy = Policy(model, torch.float32, Parallel())
        settings = OptimizerSettings(kind="adamw", learning_rate=0.0)
        self._optimizer = build_optimizer(self._policy.masters.values(), settings)
        self._gradient: dict[str, torch.Tensor] | None = None
        self._num_gathered = 0
        self._names: set[str] = set()

    @property
    def num_bytes(self) -> int:
        """What the model holds of its own at most: weights, two moments and a gradient."""
        return TENSORS_HELD * sum(one.nbytes for one in self._policy.masters.values())

    def forward_backward(self, call: ForwardBackward) -> LossAnswer:
        """The losses of a call; with ``backward`` its gradient is added. Raises CallRefused."""
        checked = check_loss(call, vocab=self.base.vocab, context=self.base.context)
        self._policy.zero_gradients()
        results = [self._row(checked, rows, call.backward) for rows in plan_rows(checked.data)]
        losses = [one for result in results for one in result.losses]
        total = float(torch.stack([one.double().sum() for one in losses]).sum())
        if not math.isfinite(total):
            raise CallRefused(
                f"loss_fn {call.loss}: the loss of this call is {total}; lower the advantages, or look at the"
                " logprobs that they are compared with"
            )
        if call.backward:
            self._gather()
        return LossAnswer(
            logprobs=tuple(_bytes(one) for result in results for one in result.logprobs),
            losses=tuple(_bytes(one) for one in losses),
            metrics={"loss:sum": total},
        )

    def optim_step(self, call: OptimStep) -> StepAnswer:
        """One step on the gathered gradient, which is then forgotten. Raises CallRefused."""
        check_step(call)
        if self._gradient is None:
            raise CallRefused(
                "optim_step: no gradient has been gathered since the last step; call forward_backward first"
            )
        for name, parameter in self._policy.masters.items():
            parameter.grad = self._gradient[name]
        norm = self._policy.gradient_norm()
        if not math.isfinite(float(norm)):
            raise CallRefused(
                f"optim_step: the gradient's norm is {float(norm)}; nothing was changed"
            )
        before = self.state()
        self._set(call)
        self._policy.update(self._optimizer, norm, max_norm=call.grad_clip_norm)
        self._check_finite(before)
        metrics = {"gradient_norm:max": float(norm), "num_gathered:sum": float(self._num_gathered)}
        self._policy.zero_gradients()
        self._gradient, self._num_gathered = None, 0
        return StepAnswer(metrics=metrics)

    def _check_finite(self, before: Mapping[str, torch.Tensor]) -> None:
        """Raise CallRefused, and be as ``before``, where a step came to a number that is not finite."""
        broken = next((name for name, tensor in self._tensors() if not tensor.isfinite().all()), "")
        if broken:
            self._policy.zero_gradients()
            self.restore(before, names=self._names)
            raise CallRefused(
                f"optim_step: {broken} would not be finite behind this step; nothing was changed. Lower learning_rate"
                " or weight_decay, or raise eps"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """What this model was saved as, with the kind before the name."""
        return tuple(sorted(self._names))

    def claim_name(self, kind: str, name: str) -> None:
        """Raise CallRefused for a name that is taken: what it means would change."""
        if f"{kind}/{name}" in self._names:
            raise CallRefused(
                f"path: {name!r} names a {kind} that this model was saved as before; choose another"
            )
        self._names.add(f"{kind}/{name}")

    def weights(self) -> dict[str, torch.Tensor]:
        """The dense model, an adapter merged into it, as an engine loads it."""
        return self._policy.weights()

    def digest(self) -> str:
        """Over the state and the names."""
        return digest_state(dict(self._tensors()), "|".join(self.names).encode())

    def state(self) -> dict[str, torch.Tensor]:
        """Trained weights, moments, gathered gradient and of how many calls it is: all that calls have made of the model."""
        return {name: tensor.detach().clone() for name, tensor in self._tensors()}

    def restore(
        self,
        state: Mapping[str, torch.Tensor],
        *,
        names: Iterable[str] = (),
        optimizer: bool = True,
        gradient: bool = True,
    ) -> None:
        """Take over a state, in parts where asked to. Raises ValueError for that of another kind of model."""
        self._policy.load_masters(_under(state, WEIGHT))
        load_optimizer(self._policy, self._optimizer, _under(state, MOMENT) if optimizer else {})
        gathered = _under(state, GRADIENT) if gradient else {}
        self._gradient = gathered or None
        self._num_gathered = int(state[NUM_GATHERED]) if gathered else 0
        self._names = set(names)

    def load(self, state: Mapping[str, torch.Tensor], *, optimizer: bool) -> None:
        """Become another model's state; what was gathered is forgotten, names that are taken stay taken."""
        self.restore(state, names=self._names, optimizer=optimizer, gradient=False)

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._policy.masters.items():
            yield f"{WEIGHT}{name}", parameter
            for key, value in self._optimizer.state.get(parameter, {}).items():
                yield f"{MOMENT}{name}/{key}", value
        for name, tensor in (self._gradient or {}).items():
            yield f"{GRADIENT}{name}", tensor
        yield NUM_GATHERED, torch.tensor(self._num_gathered)

    def _row(self, checked: CheckedLoss, data: Sequence[CheckedDatum], backward: bool) -> RowResult:  # noqa: FBT001
        row = build_row(data)
        with torch.set_grad_enabled(backward):
            logprobs_C = token_logprobs(self._policy.model, row).logprobs_C
            inputs = {
                name: torch.from_numpy(np.concatenate([datum.inputs[name] for datum in data]))
                for name in data[0].inputs
            }
            lengths = torch.tensor(row.lengths)
            tokens = ScoredTokens(
                logprobs_C=logprobs_C,
                inputs=inputs,
                sequence_C=torch.arange(len(lengths)).repeat_interleave(lengths),
            )
            losses_C = checked.loss.compute(tokens, checked.config)
            if backward:
                losses_C.sum().backward()
        return RowResult(
            logprobs=list(logprobs_C.detach().split(row.lengths)),
            losses=list(losses_C.detach().split(row.lengths)),
        )

    def _gather(self) -> None:
        masters = self._policy.masters
        fresh = {
            name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in masters.items()
        }
        broken = [name for name, tensor in fresh.items() if not tensor.isfinite().all()]
        if broken:
            raise CallRefused(
                f"forward_backward: the gradient of {broken[0]} is not finite; nothing was added. Lower weights"
                " or advantages, or look at the logprobs that they are compared with"
            )
        known = self._gradient
        total = fresh if known is None else {name: known[name] + fresh[name] for name in masters}
        norm = float(torch.nn.utils.get_total_norm(total.values()))
        if not math.isfinite(norm):
            raise CallRefused(
                f"forward_backward: the norm of the gradient, with what was gathered before, is {norm}, which no step"
                " can be taken on; nothing was added. Lower weights or advantages"
            )
        self._gradient = total
        self._num_gathered += 1
        self._policy.zero_gradients()

    def _set(self, call: OptimStep) -> None:
        for group in self._optimizer.param_groups:
            matrices = group["params"][0].ndim >= 2
            group.update(
                lr=call.learning_rate,
                betas=(call.beta1, call.beta2),
                eps=call.eps,
                weight_decay=call.weight_decay if matrices else 0.0,
            )


def _under(state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }


def plan_rows(data: Sequence[CheckedDatum]) -> Iterator[list[CheckedDatum]]:
    """The sequences of a call in order, as many together as fit a row; inputs of a row have the same names."""
    row: list[CheckedDatum] = []
    for datum in data:
        full = sum(len(one.tokens) for one in row) + len(datum.tokens) > ROW_TOKENS_MAX
        if row and (full or row[0].inputs.keys() != datum.inputs.keys()):
            yield row
            row = []
        row.append(datum)
    yield row


def build_row(data: Sequence[CheckedDatum]) -> PackedRow:
    """Sequences side by side; every token predicts its target, which need not be the token that follows it."""
    sequences = [
        SequenceTokens(
            token_ids=(*datum.tokens.tolist(), int(datum.targets[-1])),
            scored=(0, *([1] * len(datum.tokens))),
        )
        for datum in data
    ]
    targets_C = torch.from_numpy(np.concatenate([datum.targets for datum in data]))
    return replace(build_sequence_row(sequences), targets_C=targets_C)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.float().contiguous().numpy().astype("<f4", copy=False).tobytes()
