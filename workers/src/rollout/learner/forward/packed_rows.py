"""The training forward: many token sequences in one row, each prompt computed once per group.

A ``PackedRow`` is one micro-batch: a single unpadded row of tokens, ``segments`` saying which stretch
is a sequence of its own and, for groups, which prompt a completion continues. The *same* Hugging Face
module computes it (autograd, PEFT and FSDP2 go on working); only its attention function is replaced,
by one that never builds an N x N mask. Logits exist only where a token is scored. A model that
``rollout.models.forwards`` does not call packed keeps its own attention, and its rows are computed sequence
by sequence: slower and right.

    prepare_model(model)                                    # once, after loading
    row = build_group_row([GroupTokens(prompt_ids=(5, 6), completion_ids=((7, 2), (8, 9, 2)))])
    stats = token_logprobs(model, row, temperature=1.0)     # stats.logprobs_C, grad flows
    per_sample = stats.logprobs_C.split(row.lengths)        # group by group, sample by sample

Equal to the plain computation within float tolerance (``forward_reference`` holds that one).
Refuses: models that are not causal, attention dropout, sequences of one token that ask to be scored.

Axes: N tokens in the row, U predicting positions, C scored tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from rollout.learner.forward.attention import IMPLEMENTATION, register
from rollout.learner.forward.experts import ROUTES, join_routes, replay_routes, routes_of
from rollout.learner.forward.fused.layers import fuse_layers
from rollout.learner.forward.head import put_scores, scores_of
from rollout.learner.forward.layout import RowLayout, RowSegment, plan_layout
from rollout.learner.forward.logprobs import (
    BARRED_LOGIT,
    ScoresWanted,
    TokenStats,
    selected_logprobs,
)
from rollout.learner.forward.prune import READ, skip_unread
from rollout.learner.forward.sequence_parallel.slices import cut_arguments, slice_of
from rollout.learner.forward.single import single_logits, single_states
from rollout.models.forwards import forward_of, frequencies_hold
from rollout.types import ExpertRoutes

__all__ = [
    "GroupTokens",
    "PackedRow",
    "SequenceTokens",
    "TokenStats",
    "build_group_row",
    "build_sequence_row",
    "is_packed",
    "prepare_model",
    "row_states",
    "token_logprobs",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTokens:
    """One prompt (at least one token) and the completions sampled from it (each at least one token).

    ``routes``: of a mixture of experts those of each completion, the prompt's positions first and the same in all.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[tuple[int, ...], ...]
    routes: tuple[ExpertRoutes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTokens:
    """One sequence; ``scored[t]`` is 1 where the logprob of ``token_ids[t]`` is wanted.

    Position 0 has nothing to be predicted from: ``scored[0]`` must be 0. ``cut``: its end was left off.
    """

    token_ids: tuple[int, ...]
    scored: tuple[int, ...]
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRow:
    """One micro-batch. Build it with ``build_group_row`` or ``build_sequence_row``.

    ``input_ids`` and ``position_ids`` are [1, N] int64; positions restart per sequence and go on from
    the prompt in completions. ``predict_U`` are the row positions whose hidden state is scored;
    scored token c is ``targets_C[c]``, predicted at ``predict_U[source_C[c]]``. ``lengths`` is the
    number of scored tokens of every completion (or sequence) in the order given; sum == C.
    The last token of a completion is a target only: nothing follows it, so it is not in the row.
    ``barred_U`` are the predicting positions where ``barred_ids`` could not be sampled; None: nowhere.
    ``routes`` [N, layers, experts of a token] int16: the experts that ``token_logprobs`` computes each position with,
    -1 where the model chooses; None: everywhere.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    predict_U: torch.Tensor
    source_C: torch.Tensor
    targets_C: torch.Tensor
    lengths: tuple[int, ...]
    layout: RowLayout
    barred_U: torch.Tensor | None = None
    barred_ids: tuple[int, ...] = ()
    routes: torch.Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens computed, N."""
        return self.input_ids.shape[1]

    def to(self, device: torch.device | str) -> PackedRow:
        """The same row with its tensors on ``device``."""
        return PackedRow(
            input_ids=self.input_ids.to(device),
            position_ids=self.position_ids.to(device),
            predict_U=self.predict_U.to(device),
            source_C=self.source_C.to(device),
            targets_C=self.targets_C.to(device),
            lengths=self.lengths,
            layout=self.layout.to(device),
            barred_U=None if self.barred_U is None else self.barred_U.to(device),
            barred_ids=self.barred_ids,
            routes=None if self.routes is None else self.routes.to(device),
        )

    def unrouted(self) -> PackedRow:
        """The same row for a model that takes its own experts."""
        return self if self.routes is None else replace(self, routes=None)

    def barring(self, token_ids: Sequence[int], at_C: Sequence[bool]) -> PackedRow:
        """The same row, where ``token_ids`` could not be sampled for scored tokens ``at_C``.

        Completions that share a predicting position are equally long there, so that they agree.
        """
        barred_U = torch.zeros(len(self.predict_U), dtype=torch.bool, device=self.predict_U.device)
        barred_U[self.source_C[torch.tensor(at_C, device=self.source_C.device)]] = True
        return replace(self, barred_U=barred_U, barred_ids=tuple(token_ids))


def build_group_row(groups: Sequence[GroupTokens]) -> PackedRow:
    """Lay groups out as ``prompt | completion 1 | ... | completion G | next prompt | ...``.

    Raises ValueError on an empty prompt or completion.
    """
    builder = _RowBuilder()
    for group in groups:
        if not group.prompt_ids or not all(group.completion_ids):
            raise ValueError("expected a prompt and completions of at least one token each")
        builder.add_group(group)
    return builder.build()


def build_sequence_row(sequences: Sequence[SequenceTokens]) -> PackedRow:
    """Lay independent sequences side by side; each attends to itself only.

    Tokens after the last scored one are left out: no scored token depends on them.
    Raises ValueError where ``scored`` does not fit or scores position 0.
    """
    builder = _RowBuilder()
    for sequence in sequences:
        if len(sequence.scored) != len(sequence.token_ids) or (sequence.scored or (1,))[0]:
            raise ValueError("expected one 0/1 per token and 0 at position 0")
        builder.add_sequence(sequence)
    return builder.build()


def prepare_model(model: nn.Module) -> None:
    """Make a transformers causal LM (bare, PEFT or FSDP2) compute packed rows; idempotent.

    Models that cannot be packed keep their own attention; plain calls of the others go on as SDPA. Raises
    ValueError for models whose forward is not causal or that apply attention dropout.
    """
    pretrained = cast("PreTrainedModel", model)  # PEFT passes these two on
    config = pretrained.config
    if getattr(config, "attention_dropout", 0.0):
        raise ValueError("packed rows need attention_dropout 0")
    known = forward_of(config.to_dict())
    if known.kind == "Refused":
        raise ValueError(f"{config.model_type} cannot be trained: {known.reason}")
    if known.kind == "Single":
        return
    register()
    pretrained.set_attn_implementation(IMPLEMENTATION)
    skip_unread(model)
    put_scores(model)
    fuse_layers(model)
    replay_routes(model)


def is_packed(model: nn.Module) -> bool:
    """Whether a row of this model is one pass over its tokens, prompts shared."""
    config: Any = model.config
    return config._attn_implementation == IMPLEMENTATION  # noqa: SLF001 - transformers' own record


def token_logprobs(
    model: nn.Module,
    row: PackedRow,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    spread: bool = False,
) -> TokenStats:
    """Log-probabilities of the row's scored tokens, after division of the logits by ``temperature``.

    float32 [C], differentiable; with ``entropy`` also the entropy in nats of each scored token's
    distribution, with ``spread`` the mean logprob of the whole vocabulary there (differentiable too).
    ``model`` must have gone through ``prepare_model``. Raises ValueError for routes of another model.
    """
    if not _fits(model, row):
        if row.routes is not None:
            raise ValueError("experts are replayed in packed rows only")
        logits_UV = single_logits(model, row.input_ids, row.layout.segments, row.predict_U)
        return _selected(logits_UV, row, temperature, entropy=entropy, spread=spread)
    arguments = {**_arguments(model, row, row.predict_U), "logits_to_keep": row.predict_U}
    scores = scores_of(model)
    if scores is None:
        logits_UV = model(**arguments).logits[0]
    elif scores.suits(len(row.predict_U)):
        wanted = ScoresWanted(
            source_C=row.source_C,
            targets_C=row.targets_C,
            temperature=temperature,
            entropy=entropy,
            spread=spread,
            barred_U=row.barred_U,
            barred_V=_barred_ids(row, scores.vocab_size),
        )
        return scores.score(model, arguments, wanted)
    else:
        logits_UV = scores.logits(model, arguments)
    return _selected(logits_UV, row, temperature, entropy=entropy, spread=spread)


def _selected(
    logits_UV: torch.Tensor, row: PackedRow, temperature: float, *, entropy: bool, spread: bool
) -> TokenStats:
    barred_V = _barred_ids(row, logits_UV.shape[1])
    if barred_V is not None and row.barred_U is not None:
        # What the sampler did to the logits, so that both score the same distribution.
        logits_UV = logits_UV.masked_fill(row.barred_U[:, None] & barred_V, BARRED_LOGIT)
    return selected_logprobs(
        logits_UV,
        row.source_C,
        row.targets_C,
        temperature=temperature,
        entropy=entropy,
        spread=spread,
    )


def _barred_ids(row: PackedRow, vocab_size: int) -> torch.Tensor | None:
    """Bool [V] of the ids that could not be sampled somewhere; None where all could be everywhere."""
    if row.barred_U is None:
        return None
    barred_V = torch.zeros(vocab_size, dtype=torch.bool, device=row.barred_U.device)
    barred_V[[token for token in row.barred_ids if 0 <= token < vocab_size]] = True
    return barred_V


def row_states(decoder: nn.Module, row: PackedRow, positions_S: torch.Tensor) -> torch.Tensor:
    """Hidden states ``[S, H]`` of a transformer without its head at positions of the row; differentiable."""
    if not _fits(decoder, row):
        return single_states(decoder, row.input_ids, row.layout.segments, positions_S)
    arguments = _arguments(decoder, row.unrouted(), positions_S.unique())
    states_NH = decoder(**arguments).last_hidden_state[0]
    return states_NH.index_select(0, positions_S)


def _fits(model: nn.Module, row: PackedRow) -> bool:
    """Whether this row is computed packed: not where one sequence would change the frequencies of another."""
    return is_packed(model) and row.layout.longest <= frequencies_hold(vars(model.config))


def _arguments(model: nn.Module, row: PackedRow, read_U: torch.Tensor) -> dict[str, Any]:
    """Of the whole row, or of this rank's slice of it: then every position is read."""
    arguments = {
        "input_ids": row.input_ids,
        "position_ids": row.position_ids,
        "attention_mask": row.layout.no_mask,
        "use_cache": False,
        "rollout_layout": row.layout,
    }
    if row.routes is not None:
        arguments[ROUTES] = row.routes
    part = slice_of(model, row.num_tokens)
    return {**arguments, READ: read_U} if part is None else cut_arguments(arguments, part)


class _RowBuilder:
    """Collects tokens, positions and scoring of one row."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._positions: list[int] = []
        self._predict: list[int] = []
        self._source: list[int] = []
        self._targets: list[int] = []
        self._lengths: list[int] = []
        self._segments: list[RowSegment] = []
        self._routes: list[torch.Tensor] = []

    def add_group(self, group: GroupTokens) -> None:
        prompt = self._add_segment(group.prompt_ids, first=0, prompt=None)
        self._add_routes(group)
        last = self._add_predict(self._segments[prompt].end - 1)
        for completion in group.completion_ids:
            sources = [last]
            if len(completion) > 1:
                index = self._add_segment(
                    completion[:-1], first=len(group.prompt_ids), prompt=prompt
                )
                segment = self._segments[index]
                sources += [self._add_predict(i) for i in range(segment.start, segment.end)]
            self._add_scores(sources, completion)

    def add_sequence(self, sequence: SequenceTokens) -> None:
        scored = [t for t, flag in enumerate(sequence.scored) if flag]
        targets = [sequence.token_ids[t] for t in scored]
        start = len(self._ids)
        if scored:
            self._add_segment(sequence.token_ids[: scored[-1]], first=0, prompt=None)
        self._add_scores([self._add_predict(start + t - 1) for t in scored], targets)

    def build(self) -> PackedRow:
        return PackedRow(
            input_ids=torch.tensor([self._ids]),
            position_ids=torch.tensor([self._positions]),
            predict_U=torch.tensor(self._predict, dtype=torch.int64),
            source_C=torch.tensor(self._source, dtype=torch.int64),
            targets_C=torch.tensor(self._targets, dtype=torch.int64),
            lengths=tuple(self._lengths),
            layout=plan_layout(self._segments),
            routes=join_routes(self._routes, len(self._ids)),
        )

    def _add_routes(self, group: GroupTokens) -> None:
        """Of the prompt, and of each completion's tokens but the last, in the order of their segments."""
        if not group.routes:
            return
        start = len(group.prompt_ids)
        self._routes.append(routes_of(group.routes[0], 0, start))
        for completion, routes in zip(group.completion_ids, group.routes, strict=True):
            self._routes.append(routes_of(routes, start, start + len(completion) - 1))

    def _add_segment(self, ids: Sequence[int], *, first: int, prompt: int | None) -> int:
        start = len(self._ids)
        self._ids.extend(ids)
        self._positions.extend(range(first, first + len(ids)))
        self._segments.append(RowSegment(start=start, end=len(self._ids), prompt=prompt))
        return len(self._segments) - 1

    def _add_predict(self, position: int) -> int:
        self._predict.append(position)
        return len(self._predict) - 1

    def _add_scores(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._source.extend(sources)
        self._targets.extend(targets)
        self._lengths.append(len(targets))
