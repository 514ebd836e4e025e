"""Naming the state after a step: version digest and chain value, while the weights are being stored.

Hashing and writing overlap: both are most of what a step costs beside computing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from rollout.learner import hash_chain as chain
from rollout.learner.batch_step import StepResult
from rollout.learner.checkpoint import state_tensors
from rollout.learner.context import Keep
from rollout.learner.model import randomness
from rollout.learner.train_step import Trainer
from rollout.weights.digest import digest_tensors
from rollout.weights.publisher import Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What a step came to. ``stored`` names the weights as a store does; empty where nothing was kept."""

    digest: str
    chain: str
    stored: Stored


def seal_step(trainer: Trainer, keep: Keep | None, previous: str, done: StepResult) -> Seal:
    """Name the state after ``done`` and keep its weights, where asked to; call on every rank.

    ``previous`` is the chain value before the step. Raises StoreError.
    """
    parallel, settings = trainer.policy.parallel, trainer.settings
    weights = trainer.policy.weights()
    with _keeping(weights, keep if parallel.is_main else None) as kept:
        digest = parallel.on_main(lambda: digest_tensors(weights), str)
        link = chain.next_link(
            previous,
            spec_digest=settings.spec_digest,
            step=done.step,
            cursor=done.cursor,
            tokens=done.tokens,
            version=digest,
            state=digest_ranks(trainer, done.step)
            if done.step % settings.hash_every_steps == 0
            else "",
        )
        return Seal(digest=digest, chain=link, stored=parallel.on_main(kept, Stored))


@contextmanager
def _keeping(
    weights: Mapping[str, torch.Tensor], keep: Keep | None
) -> Iterator[Callable[[], Stored]]:
    """Keep in a thread; gives the function that waits for the names."""
    if keep is None:
        yield partial(Stored, object="")
        return
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool.submit(keep, weights).result


def digest_ranks(trainer: Trainer, step: int) -> str:
    """Over what every rank holds after ``step`` beside the weights: optimizer, masters, random states.

    Call on every rank.
    """
    parallel = trainer.policy.parallel
    tensors = state_tensors(trainer)
    drawn = randomness.digest(trainer.settings.seed, step, parallel.share, parallel.device)
    local = chain.digest_state(tensors, drawn)
    return chain.join_ranks(parallel.gather(local, str))
