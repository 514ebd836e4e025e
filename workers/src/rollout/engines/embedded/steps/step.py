"""One decode step as a function of tensors alone: feed every row its token, draw the next, keep it in a ring.

Nothing here asks the device for a number, allocates what outlives the step or depends on how many tokens there are,
within a stretch: so a GPU can repeat it (``capture``). Attention to own tokens and to prompts is a call of the flash
kernel each, whose bounds the device knows; on a CPU, where tests take the same steps, it is what batches that are
not static compute.

Axes: N rows, T own tokens, H query heads, K key-value heads, R = H / K, D head size, E hidden size.
"""

from __future__ import annotations

import torch

from rollout.engines.embedded.cuda_attention import attend_side_by_side
from rollout.engines.embedded.model import CompactModel, attend, merge
from rollout.engines.embedded.sampling import Sampler
from rollout.engines.embedded.steps.slots import READ_EVERY, STRETCH, Slots


def feed(
    model: CompactModel, slots: Slots, prompts: list[torch.Tensor], begin: int
) -> torch.Tensor:
    """Feed ``tokens_N``, in the stretch of own tokens from ``begin``; what the last layer leaves, x_EN."""
    end = min(begin + STRETCH, slots.shape.room)
    here_T = (slots.places_T[begin:end] == slots.filled_1)[:, None, None]
    slots.own.used.copy_(slots.filled_1.add(1).expand(slots.shape.rows))
    x_EN = model.embed(slots.tokens_N)
    rotation = model.rotation(slots.lengths_N + slots.filled_1)
    for index in range(model.config.num_layers):
        q, kv = model.heads(index, x_EN, rotation)
        places = slots.layers[index][:, :, begin:end]
        torch.where(here_T, kv[:, :, None], places, out=places)
        attended = _attend(model, slots, q, index, prompts)
        x_EN = model.finish(index, x_EN, attended)
    slots.filled_1.add_(1)
    return x_EN


def draw(slots: Slots, sampler: Sampler, logits_NV: torch.Tensor) -> None:
    """Draw the token behind those that have been fed, of the first rows as there are logits, into the ring."""
    noise_N = slots.noise_TN.index_select(0, slots.filled_1)[0, : len(logits_NV)]
    tokens, logprobs = sampler.pick_on_device(logits_NV, slots.filled_1, noise_N[:, None])
    slots.tokens_N[: len(tokens)] = tokens
    here = slots.ring_places == slots.filled_1 % READ_EVERY
    for ring, values in ((slots.ring_tokens, tokens), (slots.ring_logprobs, logprobs)):
        part = ring[:, : len(values)]
        torch.where(here, values, part, out=part)


def _attend(
    model: CompactModel, slots: Slots, q: torch.Tensor, index: int, prompts: list[torch.Tensor]
) -> torch.Tensor:
    """Queries [N, K, R, D] at own tokens and prompts: [N, H * D]."""
    own = slots.layers[index]
    if q.is_cuda:
        rows = q.flatten(1, 2)
        near = attend_side_by_side(rows, own.flatten(1, 2), slots.own, model.scale)
        far = attend_side_by_side(rows, prompts[index], slots.prompts, model.scale)
    else:
        near = _attend_own_on_cpu(model, slots, q, own)
        far = _attend_prompts_on_cpu(model, slots, q, prompts[index])
    return merge(*near, *far).flatten(1)


def _attend_own_on_cpu(
    model: CompactModel, slots: Slots, q: torch.Tensor, own: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    used = int(slots.own.used[0])
    k, v = own[:, :, :used].transpose(2, 3)
    out, lse = attend(q, k, v, scale=model.scale)
    return out.flatten(1, 2), lse.flatten(1)


def _attend_prompts_on_cpu(
    model: CompactModel, slots: Slots, q: torch.Tensor, prompt: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    bounds, outs, lses = slots.prompts, [], []
    queries = bounds.queries.tolist()
    for group, (start, used) in enumerate(
        zip(bounds.keys.tolist(), bounds.used.tolist(), strict=False)
    ):
        rows = q[queries[group] : queries[group + 1]].flatten(1, 2).transpose(0, 1)[None]
        if rows.shape[2]:
            k, v = prompt[:, start : start + used].transpose(1, 2)[:, None]
            out, lse = attend(rows, k, v, scale=model.scale)
            outs.append(out[0].transpose(0, 1))
            lses.append(lse[0].t())
    return torch.cat(outs), torch.cat(lses)
