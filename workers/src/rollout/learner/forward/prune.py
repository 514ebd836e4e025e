"""Leave out of the last layer what nobody reads: its MLP at positions that nothing is predicted from.

Earlier layers are read everywhere, through keys and values; of the last layer only the rows that are
scored. In a model of eight layers with a third of each feed-forward that is 4 % of a step where half of
the tokens are prompt, 8 % for a reward model. What is scored does not change; the hidden states of other
rows are then not what the model would give.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

READ = "rollout_read"
"""The keyword under which a model hands the positions that are read, int64 [S] without repeats."""
READ_SHARE_MAX = 0.9
"""Share of rows from which picking them out costs more than it saves."""


def skip_unread(model: nn.Module) -> None:
    """Make the last decoder layer of a transformers model obey ``READ``; idempotent.

    Layers without a plain ``mlp`` (a mixture of experts routes over all rows) compute everything.
    """
    last = model.get_decoder().layers[-1]  # pyrefly: ignore - transformers' decoders have both
    mlp = getattr(last, "mlp", None)
    if mlp is None or hasattr(mlp, "experts") or hasattr(last, "_rollout_skip"):
        return
    skip = _Skip()
    last._rollout_skip = skip  # noqa: SLF001 - marks the layer
    last.register_forward_pre_hook(skip.note, with_kwargs=True)
    mlp.register_forward_pre_hook(skip.take)
    mlp.register_forward_hook(skip.put_back)


class _Skip:
    """What a layer is told, for its MLP; a layer that is recomputed in the backward is told again."""

    def __init__(self) -> None:
        self._read: torch.Tensor | None = None
        self._shape = torch.Size()

    def note(self, layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        del layer
        read, num_rows = kwargs.get(READ), (args[0] if args else kwargs["hidden_states"]).shape[1]
        few = read is not None and len(read) <= READ_SHARE_MAX * num_rows
        self._read = read if few else None

    def take(
        self, mlp: nn.Module, args: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...] | None:
        del mlp
        if self._read is None:
            return None
        self._shape = args[0].shape
        return (args[0].index_select(1, self._read), *args[1:])

    def put_back(self, mlp: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor | None:
        del mlp, args
        if self._read is None:
            return None
        return output.new_zeros(self._shape).index_copy(1, self._read, output)
