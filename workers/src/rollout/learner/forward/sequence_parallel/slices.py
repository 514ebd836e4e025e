"""One packed row over several ranks: each computes a slice of its tokens, and in attention all tokens of a part of the heads.

Ranks of a group get the same row. A layer's weights see a slice; before attention the ranks exchange tokens for heads, and
after it heads for tokens, so that attention is that of one rank, with fewer heads. What the decoder gives is gathered to
the whole row again: whoever scores it needs to know nothing. Of a group one rank's loss counts; the others' is
multiplied by 0, so that gradients summed over all ranks are those of one rank.

Axes: N tokens of the row, P ranks of a group, n tokens of a slice (P n >= N, the last are padding), H heads, D head size,
E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from rollout.errors import SpecError
from rollout.learner.forward.experts import ROUTES

SLICE = "rollout_slice"
"""The keyword under which a model hands its slice to attention."""
FIELD = "spec.learner.sequenceParallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGroup:
    """This rank's place among those that share sequences. ``group`` is torch's process group of them."""

    rank: int
    ranks: int
    group: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSlice:
    """A rank's part of a row of ``num_tokens``."""

    among: SequenceGroup
    num_tokens: int

    @property
    def length(self) -> int:
        """Tokens of each slice, n."""
        return -(-self.num_tokens // self.among.ranks)

    @property
    def padding(self) -> int:
        """Tokens that are none, behind the row."""
        return self.length * self.among.ranks - self.num_tokens

    def cut(self, x: torch.Tensor, axis: int, filler: int) -> torch.Tensor:
        """This rank's part of a tensor of the whole row."""
        if self.padding:
            shape = list(x.shape)
            shape[axis] = self.padding
            x = torch.cat([x, x.new_full(shape, filler)], dim=axis)
        return x.narrow(axis, self.among.rank * self.length, self.length)


def share_sequences(model: nn.Module, among: SequenceGroup) -> None:
    """Have the packed rows of a prepared transformers model computed by a group of ranks; once a model.

    Raises SpecError for a model whose heads cannot be shared out, or that is not computed packed.
    """
    decoder = cast("Any", model).get_decoder()
    config = decoder.config.get_text_config()
    heads = config.num_attention_heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    if heads % among.ranks or shared % among.ranks:
        raise SpecError(
            f"{FIELD}: {among.ranks} ranks share out heads, and {config.model_type} has {heads} of queries and"
            f" {shared} of keys: use a divisor of both, or 1"
        )
    decoder.register_forward_hook(_gather_states, with_kwargs=True)
    vars(decoder)["rollout_sequences"] = among


def slice_of(model: nn.Module, num_tokens: int) -> RowSlice | None:
    """This rank's part of a row of the model, given as a whole or as its decoder; None: the whole."""
    find = getattr(model, "get_decoder", None)
    decoder = model if "rollout_sequences" in vars(model) or find is None else find()
    among = vars(decoder).get("rollout_sequences")
    return None if among is None else RowSlice(among=among, num_tokens=num_tokens)


def cut_arguments(arguments: dict[str, Any], part: RowSlice) -> dict[str, Any]:
    """What a model is called with for a slice in place of the whole row."""
    cut = {**arguments, SLICE: part}
    for name in ("input_ids", "position_ids"):
        cut[name] = part.cut(arguments[name], 1, 0)
    if ROUTES in arguments:
        cut[ROUTES] = part.cut(arguments[ROUTES], 0, -1)
    return cut


def attend_whole(
    attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    heads_of: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    part: RowSlice,
) -> torch.Tensor:
    """[1, H, n, D] of a slice -> [1, n, H, D]: ``attend`` sees [1, H/P, N, D] and gives [1, N, H/P, D]."""
    query, key, value = (_to_heads(x, part) for x in heads_of)
    found = attend(query, key, value)
    padded = nn.functional.pad(found, (0, 0, 0, 0, 0, part.padding))
    ranks, length = part.among.ranks, part.length
    _, _, heads, size = padded.shape
    sent = padded.reshape(ranks, length, heads, size)
    came = cast("torch.Tensor", _Exchange.apply(sent, part.among.group))
    return came.permute(1, 0, 2, 3).reshape(1, length, ranks * heads, size)


def heads_of_rank(x: torch.Tensor | None, part: RowSlice) -> torch.Tensor | None:
    """Of one number a head, those of the heads that this rank attends with."""
    return None if x is None else x.chunk(part.among.ranks)[part.among.rank]


def _to_heads(x: torch.Tensor, part: RowSlice) -> torch.Tensor:
    _, heads, length, size = x.shape
    ranks = part.among.ranks
    sent = x.reshape(ranks, heads // ranks, length, size)
    came = cast("torch.Tensor", _Exchange.apply(sent, part.among.group))
    whole = came.permute(1, 0, 2, 3).reshape(1, heads // ranks, ranks * length, size)
    return whole[:, :, : part.num_tokens]


def _gather_states(decoder: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
    del decoder, args
    part: RowSlice | None = kwargs.get(SLICE)
    if part is None:
        return output
    states = _Gather.apply(output.last_hidden_state[0], part.among)
    output.last_hidden_state = cast("torch.Tensor", states)[None, : part.num_tokens]
    return output


class _Exchange(torch.autograd.Function):
    """Rank r's ``x[p]`` becomes rank p's ``y[r]``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _exchange(x, group)

    @staticmethod
    @once_differentiable
    def backward(  # pyrefly: ignore[bad-override] - autograd gives one gradient an output
        ctx: Any, *grads: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        return _exchange(grads[0], ctx.group), None


def _exchange(x: torch.Tensor, group: Any) -> torch.Tensor:
    sent = x.contiguous()
    came = torch.empty_like(sent)
    torch.distributed.all_to_all_single(came, sent, group=group)
    return came


class _Gather(torch.autograd.Function):
    """Slices [n, E] -> the row [P n, E]; of what the ranks say of it, each gets the sum for its slice."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, among: SequenceGroup) -> torch.Tensor:
        ctx.among = among
        parts = [torch.empty_like(x) for _ in range(among.ranks)]
        torch.distributed.all_gather(parts, x.contiguous(), group=among.group)
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(  # pyrefly: ignore[bad-override] - autograd gives one gradient an output
        ctx: Any, *grads: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        among: SequenceGroup = ctx.among
        summed = grads[0].contiguous().clone()
        torch.distributed.all_reduce(summed, group=among.group)
        return summed.chunk(among.ranks)[among.rank], None
