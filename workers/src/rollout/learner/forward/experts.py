"""Routes of a mixture of experts, replayed: a row is computed by the experts that the engine took.

The gate still computes its logits: what a token gets of each given expert is the weight that the gate as it is now has
for it, normalised as the model type does, so that gradients reach the gate. Only the choice is not made again: a
rounding of the last bit, or an update between sampling and training, would make another one, and the learner's
distribution another policy's. Where a position has no routes the gate chooses itself.

Axes: N tokens of the row, L layers that choose, K experts of a token, E experts of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from rollout.models.experts.families import routers_of
from rollout.types import ExpertRoutes

ROUTES = "rollout_routes"
"""The keyword under which a model hands its layers the routes of a row: ids int16 [N, L, K], -1 where there are none."""


def replay_routes(model: nn.Module) -> None:
    """Make the routers of a transformers model obey ``ROUTES``; idempotent, nothing for a model without known ones."""
    for index, (layer, router) in enumerate(routers_of(model)):
        if hasattr(router, "_rollout_replay"):
            return
        router._rollout_replay = replay = _Replay(index)  # noqa: SLF001 - marks the router
        layer.register_forward_pre_hook(replay.note, with_kwargs=True)
        router.register_forward_hook(replay.choose)


def routes_of(routes: ExpertRoutes, start: int, end: int) -> torch.Tensor:
    """Ids int16 [end - start, L, K] of positions ``start`` to before ``end``; -1 behind the last that is known."""
    told = np.frombuffer(routes.part(start, end), dtype="<i2" if routes.wide else "u1")
    ids = torch.from_numpy(told.astype(np.int16)).view(-1, routes.num_layers, routes.top_k)
    spare = ids.new_full((end - start - len(ids), *ids.shape[1:]), -1)
    return torch.cat((ids, spare))


def join_routes(parts: Sequence[torch.Tensor], num_tokens: int) -> torch.Tensor | None:
    """Those of all segments of a row; None where none has any. Raises ValueError where some have, or of another model."""
    if not parts:
        return None
    if len({part.shape[1:] for part in parts}) > 1 or sum(map(len, parts)) != num_tokens:
        raise ValueError("expected routes of one model for all samples of a row, or for none")
    return torch.cat(list(parts))


class _Replay:
    """What a layer is told, for its router; a layer that is recomputed in the backward is told again."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._routes_NK: torch.Tensor | None = None

    def note(self, layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        del layer, args
        routes: torch.Tensor | None = kwargs.get(ROUTES)
        self._routes_NK = None if routes is None else routes[:, self._index].long()

    def choose(
        self, router: nn.Module, args: Any, output: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...] | None:
        del args
        if self._routes_NK is None:
            return None
        logits_NE, weights_NK, own_NK = output
        if own_NK.shape != self._routes_NK.shape:
            raise ValueError(
                f"expected routes {tuple(own_NK.shape)} [tokens, experts of each], got"
                f" {tuple(self._routes_NK.shape)}"
            )
        ids_NK = torch.where(self._routes_NK < 0, own_NK, self._routes_NK)
        found_NK = logits_NE.float().softmax(-1).gather(1, ids_NK)
        if getattr(router, "norm_topk_prob", True):  # Mixtral's has no such setting, and does
            found_NK = found_NK / found_NK.sum(-1, keepdim=True)
        return logits_NE, found_NK.to(weights_NK.dtype), ids_NK
