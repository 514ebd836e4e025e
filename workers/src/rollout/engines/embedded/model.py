"""Qwen2, Qwen3 and Llama, written for decoding: fused weights, static caches, one prompt per group.

The weights of the Hugging Face module, the same mathematics, none of its per-token Python. Activations
are feature-major (``x_ES``: one column per sample), so that each product is ``W @ x`` with the weight
as it lies in the file, streamed row by row; on a GPU, and where samples are few, the columns lie one behind the other
in memory. Rotary dimensions are stored in pairs (a permutation of the rows of q and k that their dot products do not
see), so that rotation is one complex product.

Axes: S samples = B groups x G samples, P padded prompt length, N = B x P, E hidden size, H query
heads, K key-value heads, R = H / K, D head size, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from rollout.engines.embedded.config import DecoderConfig
from rollout.engines.embedded.cuda_attention import attend_on_cuda, takes_flash
from rollout.errors import EngineError

CPU = torch.device("cpu")
VECTOR = 16
"""Float32 numbers of the widest vector."""
FEW_SAMPLES = 8
"""Up to so many columns MKL multiplies at the speed of memory where they lie one behind the other, and at a third of it where not."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001 - its log-sum-exp is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block's weights, fused: q, k, v in one matrix, gate and up in another.

    ``head_norm`` [H + K, D] is Qwen3's, of queries and keys.
    """

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    head_norm: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class CompactModel:
    """Weights and the pure mathematics of one forward; batches live in ``embedded_batch``."""

    def __init__(
        self, config: DecoderConfig, dtype: torch.dtype, device: torch.device = CPU
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self.scale = config.head_size**-0.5
        self.flash = takes_flash(device, dtype, config.head_size)
        self._mean = 1.0 / config.hidden_size
        self._epsilon = torch.tensor(config.epsilon, device=device)
        self._frequencies = config.inverse_frequencies.to(device)
        self._embed = self._head = self._norm = torch.empty(0)
        self._layers: tuple[Layer, ...] = ()

    def load(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Take the weights of a transformers state dict; whether any lies elsewhere than the last ones did.

        On a GPU weights of the same shapes are copied over the last ones: captured steps go on with them. Raises
        EngineError on a missing tensor.
        """
        weights = _Weights(tensors, self.dtype, self.device)
        old = (self._embed, self._head, self._norm, self._layers)
        self._embed = self._settled(old[0], weights.take("model.embed_tokens.weight"))
        self._head = (
            self._embed
            if self.config.tied
            else self._settled(old[1], weights.take("lm_head.weight"))
        )
        self._norm = self._settled(old[2], weights.take("model.norm.weight")[:, None])
        self._layers = tuple(
            self._settled_layer(i, _fuse(weights, f"model.layers.{i}.", self.config.head_size))
            for i in range(self.config.num_layers)
        )
        kept = (self._embed is old[0], self._head is old[1], self._norm is old[2])
        return not all(kept) or any(
            getattr(new, name) is not getattr(last, name)
            for last, new in zip(old[3], self._layers, strict=True)
            for name in Layer.__slots__
        )

    def _settled_layer(self, index: int, new: Layer) -> Layer:
        if index >= len(self._layers):
            return new
        old = self._layers[index]
        pairs = {name: (getattr(old, name), getattr(new, name)) for name in Layer.__slots__}
        return replace(
            new,
            **{
                name: self._settled(last, one)
                for name, (last, one) in pairs.items()
                if last is not None and one is not None
            },
        )

    def _settled(self, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """``new``, in the place of ``old`` where that has its shape."""
        if self.device.type == "cpu" or old.shape != new.shape:
            return new
        return old.copy_(new)

    def whole(self, length: int) -> int:
        """The next number of keys at which every thread of the attention kernel does the same arithmetic.

        Each thread works in its own part, Q x (keys + 2 + D) numbers, of one allocation, and products take other
        paths where an operand does not begin at a vector's bound: so parts must be whole vectors.
        """
        return length + -(length + 2 + self.config.head_size) % VECTOR

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [S] -> x_ES."""
        rows_SE = self._embed[tokens.to(self.device)]
        return rows_SE.t() if _is_by_sample(rows_SE.t()) else rows_SE.t().contiguous()

    def rotation(self, positions: torch.Tensor) -> torch.Tensor:
        """Rotations of ``positions`` [S]: complex64 [S, 1, D/2]."""
        angles = positions.to(self.device)[:, None] * self._frequencies
        return torch.complex(angles.cos(), angles.sin())[:, None]

    def logits(self, x_ES: torch.Tensor) -> torch.Tensor:
        """float32 [S, V] from the last layer's output."""
        return _times(self._head, self._normed(x_ES, self._norm)).t().float().contiguous()

    def heads(
        self, index: int, x_ES: torch.Tensor, rotation: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated queries [S, K, R, D] and keys with values [2, S, K, D] of layer ``index``."""
        layer, config = self._layers[index], self.config
        fused = _times(layer.qkv, self._normed(x_ES, layer.input_norm), layer.qkv_bias)
        heads = fused.t().contiguous().view(x_ES.shape[1], -1, config.head_size)
        rotated = heads[:, : config.num_heads + config.num_kv_heads]
        if layer.head_norm is not None:
            _norm_heads(rotated, layer.head_norm, config.epsilon)
        _rotate(rotated, rotation)
        q = heads[:, : config.num_heads].unflatten(1, (config.num_kv_heads, -1))
        return q, heads[:, config.num_heads :].unflatten(1, (2, -1)).transpose(0, 1)

    def finish(self, index: int, x_ES: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest of layer ``index`` after attention [S, H * D]; overwrites and returns ``x_ES``."""
        layer = self._layers[index]
        x_ES.addmm_(layer.out, attended.t())
        if layer.out_bias is not None:
            x_ES += layer.out_bias
        gate, up = _times(layer.gate_up, self._normed(x_ES, layer.post_norm)).chunk(2)
        return x_ES.addmm_(layer.down, functional.silu(gate, inplace=True).mul_(up))

    def _normed(self, x_ES: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x_ES.is_cuda:  # one kernel instead of seven
            size = (x_ES.shape[0],)
            return functional.rms_norm(x_ES.t(), size, weight[:, 0], self.config.epsilon).t()
        length = torch.linalg.vector_norm(x_ES, dim=0, keepdim=True, dtype=torch.float32)
        inverse = torch.addcmul(self._epsilon, length, length, value=self._mean).rsqrt_()
        return (x_ES * inverse).to(self.dtype).mul_(weight)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    bias: torch.Tensor | None = None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of q [.., H, Q, D] against k, v [.., K, S, D]."""
    if q.is_cuda:
        return attend_on_cuda(q, k, v, causal=causal, bias=bias, scale=scale)
    return _flash(q, k, v, 0.0, causal, attn_mask=bias, scale=scale)


def merge(
    near: torch.Tensor, near_lse: torch.Tensor, far: torch.Tensor, far_lse: torch.Tensor
) -> torch.Tensor:
    """Attention over two sets of keys, outputs [S, H, D] and log-sum-exps [S, H], as one."""
    weight = torch.sigmoid_(near_lse - far_lse)[:, :, None].to(far.dtype)
    return torch.lerp(far, near, weight)


def _is_by_sample(x_ES: torch.Tensor) -> bool:
    """Whether the columns of such a tensor lie one behind the other."""
    return x_ES.is_cuda or x_ES.shape[1] <= FEW_SAMPLES


def _times(
    weight: torch.Tensor, x_ES: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``weight @ x_ES + bias``; by sample with the bias in the product's own kernel."""
    if _is_by_sample(x_ES):
        return functional.linear(x_ES.t(), weight, None if bias is None else bias[:, 0]).t()
    product = torch.mm(weight, x_ES)
    return product if bias is None else product.add_(bias)


def _norm_heads(heads: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    """Normalise each head of ``heads`` [S, heads, D] in place; ``weight`` is [heads, D]."""
    if heads.is_cuda:
        heads.copy_(functional.rms_norm(heads, heads.shape[-1:], eps=epsilon).mul_(weight))
        return
    wide = heads.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    heads.copy_((wide * inverse).to(heads.dtype) * weight)


def _rotate(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Turn the pairs of ``heads`` [S, heads, D] in place."""
    pairs = heads.unflatten(-1, (-1, 2))
    if heads.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(rotation)
    else:
        wide = torch.view_as_complex(pairs.float().contiguous())
        pairs.copy_(torch.view_as_real(wide * rotation))


def _paired(weight: torch.Tensor, head_size: int) -> torch.Tensor:
    """Rows (a, b halves of each head) -> (a0, b0, a1, b1, ...)."""
    return weight.unflatten(0, (-1, 2, head_size // 2)).transpose(1, 2).flatten(0, 2)


def _fuse(weights: _Weights, prefix: str, head_size: int) -> Layer:
    attn = f"{prefix}self_attn."
    names = [f"{attn}{name}_proj" for name in "qkv"]

    def fused(suffix: str) -> torch.Tensor:
        q, k, v = (weights.take(f"{name}.{suffix}") for name in names)
        return torch.cat((_paired(q, head_size), _paired(k, head_size), v))

    out_bias = weights.find(f"{attn}o_proj.bias")
    return Layer(
        input_norm=weights.take(f"{prefix}input_layernorm.weight")[:, None],
        qkv=fused("weight"),
        qkv_bias=fused("bias")[:, None] if weights.has(f"{names[0]}.bias") else None,
        head_norm=_head_norm(weights, attn, head_size),
        out=weights.take(f"{attn}o_proj.weight"),
        out_bias=None if out_bias is None else out_bias[:, None],
        post_norm=weights.take(f"{prefix}post_attention_layernorm.weight")[:, None],
        gate_up=torch.cat([weights.take(f"{prefix}mlp.{n}_proj.weight") for n in ("gate", "up")]),
        down=weights.take(f"{prefix}mlp.down_proj.weight"),
    )


def _head_norm(weights: _Weights, attn: str, head_size: int) -> torch.Tensor | None:
    if not weights.has(f"{attn}q_norm.weight"):
        return None
    rows = []
    for name in "qk":
        weight = _paired(weights.take(f"{attn}{name}_norm.weight"), head_size)
        num_heads = weights.take(f"{attn}{name}_proj.weight").shape[0] // head_size
        rows.append(weight.expand(num_heads, head_size))
    return torch.cat(rows)


class _Weights:
    """A state dict in one dtype, with errors that name what is missing."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._tensors = tensors
        self._dtype = dtype
        self._device = device

    def has(self, name: str) -> bool:
        return name in self._tensors

    def find(self, name: str) -> torch.Tensor | None:
        return self.take(name) if name in self._tensors else None

    def take(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            raise EngineError(
                f"expected tensor {name} in the weights; got {len(self._tensors)} others"
            )
        mine = self._device.type != "cpu"  # whoever gave it may write to his own again
        return self._tensors[name].to(self._device, self._dtype, copy=mine)
