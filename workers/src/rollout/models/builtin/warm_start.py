"""The warm start of the tiny models that know something: a bare loop of supervised fine-tuning, some seconds long.

One thread, orders from ``rollout.seeds``, no dropout and no global random state: the same machine gives
the same weights. Not the trainer: runs go through ``rollout.learner``.

Axes: B rows of a batch, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from rollout.data.permutation import permute, shuffle_key

BATCH_SIZE = 128
LEARNING_RATE = 3e-3
BETAS = (0.9, 0.98)
WARMUP_STEPS = 20
MINIMUM_RATIO = 0.1
GRAD_NORM_MAX = 1.0
IGNORED = -100


Row = tuple[Sequence[int], Sequence[int]]
"""Token ids of a demonstration, and a mask of the same length: 1 where they are to be learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """All demonstrations as padded rows: ``ids_BT`` and, where tokens are to be learned, ``targets_BT``."""

    ids_BT: Tensor
    targets_BT: Tensor


def warm_start(directory: Path, rows: Sequence[Row], pad: int, *, seed: int, steps: int) -> None:
    """Train the model in ``directory`` for ``steps`` steps on ``rows`` and write its weights back."""
    weights = directory / "model.safetensors"
    with _one_thread():
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(directory), attn_implementation="sdpa"
        )
        model.load_state_dict(load_file(weights), strict=False)
        model.tie_weights()
        batches = _batches(len(rows), seed=seed, steps=steps)
        _train(model, pad_rows(rows, pad), batches, steps=steps)
    names = load_file(weights).keys()
    trained = model.state_dict()
    save_file({name: trained[name].contiguous() for name in names}, weights, {"format": "pt"})


def pad_rows(rows: Sequence[Row], pad: int) -> Demonstrations:
    """The rows at the length of the longest, ``pad`` behind them."""
    longest = max(len(ids) for ids, _ in rows)
    ids_BT = torch.full((len(rows), longest), pad)
    targets_BT = torch.full((len(rows), longest), IGNORED)
    for row, (ids, mask) in enumerate(rows):
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        learned = torch.tensor(mask, dtype=torch.bool)
        targets_BT[row, : len(ids)][learned] = ids_BT[row, : len(ids)][learned]
    return Demonstrations(ids_BT=ids_BT, targets_BT=targets_BT)


def _train(
    model: nn.Module, data: Demonstrations, batches: Iterator[list[int]], *, steps: int
) -> None:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0
    )
    model.train()
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * _ratio(step, steps)
        logits = model(input_ids=data.ids_BT[batch], use_cache=False).logits[:, :-1]
        loss = functional.cross_entropy(
            logits.flatten(0, 1), data.targets_BT[batch][:, 1:].flatten(), ignore_index=IGNORED
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), GRAD_NORM_MAX)
        optimizer.step()


def _batches(num_rows: int, *, seed: int, steps: int) -> Iterator[list[int]]:
    """Rows of each step: one permutation an epoch, the rows that fill no batch left out."""
    per_epoch = num_rows // BATCH_SIZE
    for step in range(steps):
        epoch, place = divmod(step, per_epoch)
        key = shuffle_key(seed, epoch)
        yield [permute(place * BATCH_SIZE + row, num_rows, key) for row in range(BATCH_SIZE)]


def _ratio(step: int, steps: int) -> float:
    """Linear growth, then a straight line down to ``MINIMUM_RATIO``."""
    fall = 1 - (1 - MINIMUM_RATIO) * step / steps
    return fall * min(1.0, (step + 1) / WARMUP_STEPS)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums depend on the number of threads; one is also the fastest for a model this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
