"""Any transformers causal LM as a decoder: slower, for models that ``CompactModel`` does not know.

Each prompt is still computed once; its cache is then repeated per sample. Models whose rows the learner does
not pack have caches of many kinds, some of which transformers neither repeats nor fills: their sequences are
computed whole for every token.

Of a mixture of experts each forward may say which experts it took (``BatchSize.routes``): a token's are those of the
forward that fed it, the prompt's those of its one computation, which the samples of a group share.

Axes: S samples = B groups x G samples, V vocabulary, P prompt tokens, L layers that choose, K experts of a token.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from rollout.engines.embedded.batch import BatchSize
from rollout.engines.embedded.model import CPU
from rollout.errors import EngineError
from rollout.models.experts.families import ExpertShape, router_shape, routers_of
from rollout.models.forwards import forward_of, frequencies_hold

POSITIONS_MAX = 1 << 20
"""Of models that have no position table and name no longest sequence."""


class ModuleDecoder:
    """Decoder around the module that transformers builds for a folder's configuration."""

    takes_ragged_prompts = False

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device = CPU) -> None:
        try:
            config = AutoConfig.from_pretrained(directory, local_files_only=True)
            # SDPA leaves out what caps scores, and nothing says so.
            capped = getattr(config, "attn_logit_softcapping", None)
            self._module = (
                AutoModelForCausalLM.from_config(
                    config, dtype=dtype, attn_implementation="eager" if capped else None
                )
                .eval()
                .to(device)
            )
        except (OSError, ValueError, KeyError) as error:
            raise EngineError(f"transformers cannot build {directory}: {error}") from error
        self.vocab_size: int = config.vocab_size
        longest = getattr(config, "max_position_embeddings", None) or POSITIONS_MAX
        self.positions_max: int = min(longest, frequencies_hold(vars(config)))
        self._shares = forward_of(config.to_dict()).kind == "Packed"
        self._watch: RouteWatch | None = None

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy weights in by name. Raises EngineError when names or shapes do not fit."""
        try:
            result = self._module.load_state_dict(tensors, strict=False)
        except RuntimeError as error:
            raise EngineError(
                f"weights do not fit {type(self._module).__name__}: {error}"
            ) from error
        tied = set(self._module.all_tied_weights_keys)
        missing = [name for name in result.missing_keys if name not in tied]
        if missing or result.unexpected_keys:
            raise EngineError(f"weights lack {missing} and bring unknown {result.unexpected_keys}")

    def open(self, prompts: Sequence[Sequence[int]], size: BatchSize) -> ModuleBatch | WholeBatch:
        """A batch; all prompts must have the same length. Raises EngineError where routes are wanted and not known."""
        ids = torch.tensor(prompts, device=self._module.device)
        if size.routes:
            return ModuleBatch(self._module, ids, size.group_size, self._watched())
        batch = ModuleBatch if self._shares else WholeBatch
        return batch(self._module, ids, size.group_size)

    def _watched(self) -> RouteWatch:
        """The watch of this model's routers, made at its first use: who asks for no routes pays nothing."""
        if self._watch is None:
            shape = router_shape(self._module) if self._shares else None
            if shape is None:
                raise EngineError(
                    f"which experts {type(self._module).__name__} takes is not known: expected a model type"
                    " whose routes are told"
                )
            self._watch = RouteWatch(self._module, shape)
        return self._watch


class RouteWatch:
    """What the routers of a module chose in the forward between ``begin`` and ``end``."""

    def __init__(self, module: torch.nn.Module, shape: ExpertShape) -> None:
        self._dtype = torch.int16 if shape.empty().wide else torch.uint8
        self._found: list[torch.Tensor] | None = None
        for _, router in routers_of(module):
            router.register_forward_hook(self._note)

    def begin(self) -> None:
        """Take note from here on."""
        self._found = []

    def end(self, num_rows: int) -> torch.Tensor:
        """Ids [rows, tokens, L, K] of the forward, on the CPU."""
        found, self._found = self._found, None
        assert found is not None, "begin comes first"
        ids = torch.stack(found, dim=1)
        return ids.unflatten(0, (num_rows, -1)).cpu().to(self._dtype)

    def _note(self, router: Any, args: Any, output: tuple[torch.Tensor, ...]) -> None:
        del router, args
        if self._found is not None:
            self._found.append(output[2])


class ModuleBatch:
    """The transformers cache of one batch; with a ``watch`` also the experts of every token that was fed."""

    def __init__(
        self,
        module: torch.nn.Module,
        ids: torch.Tensor,
        group_size: int,
        watch: RouteWatch | None = None,
    ) -> None:
        self._module = module
        self._ids = ids
        self._group_size = group_size
        self._watch = watch
        self._chosen: list[torch.Tensor] = []
        self._columns_S = torch.arange(len(ids) * group_size)
        self._cache = DynamicCache(config=module.config)  # pyrefly: ignore[bad-argument-type] - to torch an attribute may be a tensor

    def first(self) -> torch.Tensor:
        """Compute the prompts once, then repeat their cache for every sample."""
        logits_SV = self._forward(self._ids).repeat_interleave(self._group_size, dim=0)
        self._cache.batch_repeat_interleave(self._group_size)
        return logits_SV

    def step(self, tokens_S: torch.Tensor) -> torch.Tensor:
        """Feed one token per sample."""
        return self._forward(tokens_S[:, None].to(self._ids.device))

    def keep(self, groups_B: torch.Tensor, samples_S: torch.Tensor) -> None:
        """Drop the caches of all other samples."""
        del groups_B
        self._columns_S = self._columns_S[samples_S]
        self._cache.batch_select_indices(samples_S.to(self._ids.device))

    def routes(self) -> torch.Tensor:
        """Experts [S, P + steps, L, K] of all samples that the batch began with; zeros where one had left it."""
        prompts = self._chosen[0].repeat_interleave(self._group_size, dim=0)
        return torch.cat([prompts, *self._chosen[1:]], dim=1)

    def _keep_routes(self, ids: torch.Tensor) -> None:
        """Put those of a step where its samples stood at first."""
        if self._chosen:
            all_S = ids.new_zeros(len(self._ids) * self._group_size, *ids.shape[1:])
            all_S[self._columns_S] = ids
            ids = all_S
        self._chosen.append(ids)

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self._watch is None:
            return self._logits(ids)
        self._watch.begin()
        logits_SV = self._logits(ids)
        self._keep_routes(self._watch.end(len(ids)))
        return logits_SV

    def _logits(self, ids: torch.Tensor) -> torch.Tensor:
        output = self._module(
            input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1
        )
        return output.logits[:, -1].float().contiguous()


class WholeBatch:
    """The tokens of one batch, computed anew at every step: no cache, so that nothing in one can be wrong."""

    def __init__(self, module: torch.nn.Module, ids: torch.Tensor, group_size: int) -> None:
        self._module = module
        self._ids = ids
        self._group_size = group_size
        parameters = inspect.signature(module.forward).parameters
        self._last = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def first(self) -> torch.Tensor:
        """Compute the prompts once."""
        logits_SV = self._forward().repeat_interleave(self._group_size, dim=0)
        self._ids = self._ids.repeat_interleave(self._group_size, dim=0)
        return logits_SV

    def step(self, tokens_S: torch.Tensor) -> torch.Tensor:
        """Append one token per sample."""
        self._ids = torch.cat((self._ids, tokens_S[:, None].to(self._ids.device)), dim=1)
        return self._forward()

    def keep(self, groups_B: torch.Tensor, samples_S: torch.Tensor) -> None:
        """Drop all other samples."""
        del groups_B
        self._ids = self._ids[samples_S.to(self._ids.device)]

    def _forward(self) -> torch.Tensor:
        output = self._module(input_ids=self._ids, use_cache=False, **self._last)
        return output.logits[:, -1].float().contiguous()
