"""The model being trained: what its forward computes with, and the fp32 masters that the optimizer moves.

The policy is the cast that actors serve (``dtype``); the learner's forward uses the very same numbers.
In Float32 master and policy are one tensor. In BFloat16 masters are kept apart and cast back after
every update; gradients are summed in float32. With FSDP2 the sharded parameters are the masters and
the cast happens as they are gathered. Of a model with an adapter only what is trainable has masters;
with FSDP2 the frozen rest is sharded too.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from rollout.errors import SpecError
from rollout.learner.forward.packed_rows import is_packed, prepare_model
from rollout.learner.forward.sequence_parallel.slices import FIELD, SequenceGroup, share_sequences
from rollout.learner.model.adapter import adapter_tensors, merged_weights
from rollout.learner.model.parallel import Parallel, local_part, shard, shard_like, whole
from rollout.models.scoring import is_scorer

DTYPES = {"Float32": torch.float32, "BFloat16": torch.bfloat16}


def load_model(path: Path) -> nn.Module:
    """A causal LM in float32 from a local folder, its class imported by name (``Auto*`` is slow).

    Raises SpecError when transformers does not know the architecture, and for a reward model.
    """
    config = json.loads((path / "config.json").read_text())
    if is_scorer(config):
        raise SpecError(
            f"{path}: a reward model scores answers and has no language head; start from the model"
            " that it was trained from, and name the reward model under train.rewards"
        )
    family, names = config.get("model_type"), config.get("architectures") or [None]
    try:
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        cls = getattr(module, names[0])
    except (ImportError, AttributeError, TypeError) as error:
        raise SpecError(
            f"{path}/config.json: model_type {family!r} with architecture {names[0]!r} is not a causal"
            " LM that transformers knows; use another model or a newer transformers"
        ) from error
    model = cls.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    prepare_model(model)
    return model


def freeze(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The same model without gradients, its parameters in ``dtype`` (buffers stay as they are)."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model.requires_grad_(requires_grad=False)


def recompute_activations(model: nn.Module) -> None:
    """Keep no activations of the layers; the backward computes them again."""
    model.gradient_checkpointing_enable({"use_reentrant": False})  # pyrefly: ignore - not of nn.Module
    for module in model.modules():
        # Transformers checkpoints in training mode only; in that mode other parts are another policy (a router draws).
        module.training = getattr(module, "gradient_checkpointing", False)
    drop_nothing(model)


def drop_nothing(model: nn.Module) -> None:
    """Switch dropout off for good: actors have none, and old logprobs would be another policy's."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in [
            n for n, value in vars(module).items() if "drop" in n and type(value) is float
        ]:
            setattr(module, name, 0.0)


class Policy:
    """Owns parameters and gradients. ``masters`` are by their transformers names, tied ones once.

    ``model`` comes in float32, as ``load_model`` makes it. Where it carries an adapter (``adapter``),
    the masters are the adapter's, and ``weights`` the dense model with the adapter merged into it, or
    with ``serves_adapter`` the adapter.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        parallel: Parallel,
        *,
        serves_adapter: bool = False,
    ) -> None:
        self.model = model
        self._serves_adapter = serves_adapter
        self.parallel = parallel
        self.dtype = dtype
        self._flat: torch.Tensor | None = None
        self.adapted = not all(p.requires_grad for p in model.parameters())
        model.to(parallel.device)
        if parallel.sequences is not None:
            _share_sequences(model, parallel.sequences)
        if parallel.sharded:
            self.masters = _shard_masters(model, dtype, parallel, adapted=self.adapted)
        else:
            self.masters = (_freeze_rest if self.adapted else _build_masters)(model, dtype)
        self._apart = not (parallel.sharded or self.adapted or dtype == torch.float32)
        if self._apart or (parallel.world_size > 1 and not parallel.sharded):
            self._flat = _attach_gradients(list(self.masters.values()))
        if self._apart:
            _send_gradients(model, self.masters)

    @property
    def serves_masters(self) -> bool:
        """Whether ``weights`` are the masters themselves, whole and uncast."""
        return not (self._apart or self.parallel.sharded or self.adapted)

    def zero_gradients(self) -> None:
        """Forget all gradients. Parameters without one count as zero, on every rank."""
        if self._flat is not None:
            self._flat.zero_()
            return
        for parameter in self.masters.values():
            parameter.grad = None

    def sum_gradients(self) -> None:
        """Add up the ranks' gradients (sharded ones already are)."""
        if self._flat is not None:
            self.parallel.add_up(self._flat)
            return
        for parameter in self.masters.values():
            if parameter.grad is None and not self.parallel.sharded:
                parameter.grad = torch.zeros_like(parameter)

    def gradient_norm(self) -> torch.Tensor:
        """The global L2 norm, float32, on every rank."""
        if self._flat is not None:
            return torch.linalg.vector_norm(self._flat)
        return whole(nn.utils.get_total_norm(self._gradients()))

    def scale_gradients(self, factor: torch.Tensor) -> None:
        """Multiply all gradients."""
        if self._flat is not None:
            self._flat.mul_(factor)
            return
        for gradient in self._gradients():
            gradient.mul_(factor)

    def update(self, optimizer: Optimizer, norm: torch.Tensor, *, max_norm: float) -> None:
        """Clip the gradient, whose norm is known, and take the optimizer's step; 0 does not clip."""
        if 0 < max_norm < float(norm):
            self.scale_gradients(max_norm / (norm + 1e-6))
        optimizer.step()
        self.cast()

    def broken_gradients(self) -> list[str]:
        """Names of parameters whose gradient is not finite, over all ranks."""
        found = [
            name
            for name, parameter in self.masters.items()
            if parameter.grad is not None and not local_part(parameter.grad).isfinite().all()
        ]
        return sorted({name for names in self.parallel.gather(found, list[str]) for name in names})

    def cast(self) -> None:
        """Make the model's parameters the cast of the masters. Call after each optimizer update."""
        if self._apart:
            named = dict(self.model.named_parameters())
            with (
                torch.no_grad()
            ):  # all at once: a device starts few kernels instead of one a parameter
                torch._foreach_copy_(list(named.values()), [self.masters[name] for name in named])

    def full_masters(self) -> dict[str, torch.Tensor]:
        """All fp32 masters, whole. With shards a collective."""
        return {name: whole(parameter.detach()) for name, parameter in self.masters.items()}

    def weights(self) -> dict[str, torch.Tensor]:
        """What is published: all parameters in ``dtype``, whole, or the adapter. With shards a collective."""
        if self.serves_merged:
            return merged_weights(self.model)
        if self._apart:
            return {name: p.detach() for name, p in self.model.named_parameters()}
        return self.weights_of(self.full_masters())

    @property
    def serves_merged(self) -> bool:
        """Whether ``weights`` are made of the frozen model and the masters: these alone do not say them."""
        return self.adapted and not self._serves_adapter

    def weights_of(self, masters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same as of these whole masters, of now or another time. Not where merged ones are served."""
        assert not self.serves_merged
        if self._serves_adapter:
            return adapter_tensors(masters)
        return {name: tensor.to(self.dtype) for name, tensor in masters.items()}

    def load_masters(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over whole masters by name. Raises ValueError when names or shapes differ."""
        if set(tensors) != set(self.masters):
            missing = sorted(set(self.masters) ^ set(tensors))
            raise ValueError(f"expected the parameters of this model; differing: {missing[:4]}")
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(shard_like(tensors[name].to(self.parallel.device), master))
        self.cast()

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self.masters.values() if p.grad is not None]


def _share_sequences(model: nn.Module, among: SequenceGroup) -> None:
    """Raises SpecError for a model whose rows are computed sequence by sequence, or whose heads are not shared out."""
    decoder = model.get_decoder()  # pyrefly: ignore - to torch an attribute may be a tensor
    if not is_packed(decoder):
        kind = decoder.config.model_type
        raise SpecError(
            f"{FIELD}: {kind} is computed sequence by sequence, each by one rank: use 1"
        )
    share_sequences(model, among)


def _build_masters(model: nn.Module, dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """Masters by name; in low precision copies, and the model's own parameters are cast.

    Parameters only: a module's float32 buffers (rotary frequencies) stay as they are.
    """
    named = dict(model.named_parameters())
    if dtype == torch.float32:
        return named
    masters = {name: nn.Parameter(p.detach().clone()) for name, p in named.items()}
    for parameter in named.values():
        parameter.data = parameter.data.to(dtype)
    return masters


def _freeze_rest(model: nn.Module, dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """Of a model with an adapter: the float32 parameters that are trained; all others in ``dtype``, or packed."""
    masters = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            masters[name] = parameter
        elif parameter.is_floating_point():  # others are packed
            parameter.data = parameter.data.to(dtype)
    return masters


def _shard_masters(
    model: nn.Module, dtype: torch.dtype, parallel: Parallel, *, adapted: bool
) -> dict[str, nn.Parameter]:
    """Shard everything; the float32 shards that are trained, by name.

    What an adapter leaves frozen lies and travels in ``dtype``; the adapter is gathered in float32, since
    the merged weight is summed in it.
    """
    if adapted:
        _freeze_rest(model, dtype)
    layers = list(model.get_decoder().layers)  # pyrefly: ignore - to torch an attribute may be a tensor
    shard(model, layers, None if adapted else dtype, reshards=parallel.reshards)
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _attach_gradients(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """One flat buffer that every ``.grad`` is a view of: one sum over ranks, one norm, one clip.

    Only where ranks or casts need it: without it the first backward hands its gradients over as they
    are, instead of adding them to zeros.
    """
    flat = torch.zeros(sum(p.numel() for p in parameters), device=parameters[0].device)
    parts = flat.split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)
    return flat


def _send_gradients(model: nn.Module, masters: Mapping[str, nn.Parameter]) -> None:
    """Add each fresh low-precision gradient to its master's and drop it."""

    def send(name: str, parameter: torch.Tensor) -> None:
        gradient, target = parameter.grad, masters[name].grad
        assert gradient is not None
        assert target is not None
        target.add_(gradient)
        parameter.grad = None

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: send(name, p))
