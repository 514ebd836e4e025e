"""Vectors and scores as an engine of a run: one row of numbers for each prompt, nothing sampled.

In ``exact`` each prompt is computed by itself, so that no number depends on what else was asked for; else those that came
together are padded beside each other. A prompt whose numbers are none (a NaN in the weights) is given up, as one that an
engine cannot answer.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

import torch
from safetensors import SafetensorError

from rollout.engines.pooled.module import PooledInput, PooledModule, activate, finish_vectors
from rollout.errors import EngineError
from rollout.models.pooled import PooledModel, read_pooled
from rollout.seams import SampleProgress
from rollout.types import Completion, GenerateRequest, WeightVersion
from rollout.weights.digest import digest_tensors, load_weights

TOGETHER_MAX = 16
"""Prompts of one forward, where they may share one."""

T = TypeVar("T")


class PooledEngine:
    """``rollout.seams.Engine`` in a thread of this process. ``model`` is a local folder; weights come by ``load``."""

    def __init__(
        self, model: Path, task: Literal["embed", "score"], *, num_threads: int = 1, exact: bool
    ) -> None:
        self._path, self._task = model, task
        self._together = 1 if exact else TOGETHER_MAX
        self._executor = ThreadPoolExecutor(
            1, "pooled-engine", initializer=torch.set_num_threads, initargs=(num_threads,)
        )
        self._facts: PooledModel | None = None
        self._module: PooledModule | None = None
        self._version: WeightVersion | None = None
        self._asked_to_end = False

    @property
    def version(self) -> WeightVersion | None:
        """The version that the next ``generate`` computes with; None before the first ``load``."""
        return self._version

    async def start(self) -> None:
        """Read how the model's numbers are to be read; idempotent. Raises SpecError."""
        self._facts = read_pooled(self._path, self._task)

    async def load(
        self,
        version: WeightVersion,
        weights: Path,
        changed: frozenset[str] | None = None,  # noqa: ARG002 - the seam's; this engine loads whole
    ) -> str:
        """Load a safetensors file; returns the digest of its tensors."""
        self._version = None
        digest = await self._run(lambda: self._load(weights))
        self._version = version
        return digest

    async def generate(self, requests: Sequence[GenerateRequest]) -> Sequence[Sequence[Completion]]:
        """The numbers of every request's prompt, once for each of its seeds; see the seam."""
        self._asked_to_end = False
        return await self._run(lambda: self._generate(requests))

    def interrupt(self) -> None:
        """End with the present prompts; see the seam."""
        self._asked_to_end = True

    def progress(self) -> Sequence[Sequence[SampleProgress]]:
        """Nothing: a prompt has no tokens that grow."""
        return ()

    async def stop(self) -> None:
        """Free weights and thread; idempotent."""
        self._module, self._version = None, None
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _load(self, weights: Path) -> str:
        facts = self._facts or read_pooled(self._path, self._task)
        try:
            digest = digest_tensors(load_weights(weights))
        except (OSError, ValueError, SafetensorError) as error:
            raise EngineError(f"cannot read weights {weights}: {error}") from error
        with tempfile.TemporaryDirectory(prefix="rollout-") as name:
            folder = Path(name)
            shutil.copyfile(self._path / "config.json", folder / "config.json")
            (folder / "model.safetensors").symlink_to(weights.absolute())
            self._facts, self._module = facts, PooledModule(folder, facts)
        return digest

    def _generate(self, requests: Sequence[GenerateRequest]) -> list[list[Completion]]:
        if self._module is None or self._version is None:
            raise EngineError("generate was called before any weights were loaded")
        results: list[list[Completion]] = []
        for start in range(0, len(requests), self._together):
            part = requests[start : start + self._together]
            if self._asked_to_end:
                found = [_ended("interrupted") for _ in part]
            else:
                found = self._compute(self._module, part)
            results += [
                [one] * len(request.seeds) for one, request in zip(found, part, strict=True)
            ]
        return results

    def _compute(
        self, module: PooledModule, requests: Sequence[GenerateRequest]
    ) -> list[Completion]:
        facts = self._facts
        assert facts is not None
        for request in requests:
            ids = request.prompt_ids
            if not ids or max(ids) >= module.vocab_size or len(ids) > facts.context:
                raise EngineError(
                    f"expected 1 to {facts.context} tokens of a vocabulary of {module.vocab_size}, got {len(ids)}"
                )
        numbers = module.compute([PooledInput(ids=one.prompt_ids) for one in requests])
        if facts.task == "embed":
            numbers = finish_vectors(numbers, normalised=facts.normalised, dimensions=None)
        else:
            numbers = activate(numbers, facts.activation)
        return [_answer(row) for row in numbers.tolist()]


def _answer(row: list[float]) -> Completion:
    if not all(map(math.isfinite, row)):
        return _ended("aborted")
    return Completion(token_ids=(), logprobs=(), finish="stop", numbers=tuple(row))


def _ended(how: Literal["aborted", "interrupted"]) -> Completion:
    return Completion(token_ids=(), logprobs=(), finish=how)
