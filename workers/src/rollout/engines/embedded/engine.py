"""The embedded engine: generation inside the actor's own process, with no server.

Fused weights and static caches for Qwen2, Qwen3 and Llama (``model``), the transformers module for
anything else. Each prompt is computed once per group. In ``exact`` a group's tokens and logprobs are
bitwise the same whatever else is asked for, on whichever actor of the same build, settings and thread
count: up to ``batch_groups`` groups share a batch of a fixed shape, where places in it have been found to agree bit
for bit (``invariance``); where they do not, a group is a batch of its own.
Otherwise up to ``batch_groups`` groups share a batch of whatever shape they need.

Choices that are given are scored like samples of a group, fed one after the other instead of drawn.

Refuses: sampling truncations, penalties, end tokens from a generation file (protocol section 10).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import torch
from safetensors import SafetensorError

from rollout.engines.embedded.batch import Decoder
from rollout.engines.embedded.config import read_config
from rollout.engines.embedded.decoder import CompactDecoder
from rollout.engines.embedded.generate import (
    BatchPlan,
    Sample,
    generate_batch,
    num_rows,
    plan_batches,
    tokens_max,
)
from rollout.engines.embedded.invariance import SlotProbe
from rollout.engines.embedded.model import CPU
from rollout.engines.embedded.progress import GenerationWatch
from rollout.engines.embedded.steps.capture import Capture
from rollout.engines.stops import StopTexts
from rollout.errors import EngineError
from rollout.seams import SampleProgress
from rollout.types import Completion, GenerateRequest, VersionSpan, WeightVersion
from rollout.weights.digest import TensorDigests, load_weights, weight_files
from rollout.weights.host import read_tensors

DTYPES = {"Float32": torch.float32, "BFloat16": torch.bfloat16}
"""Names of the API and what they mean here."""

T = TypeVar("T")


class EmbeddedEngine:
    """``rollout.seams.Engine`` in a thread of this process.

    ``model`` is a local folder with ``config.json``; weights come by ``load``. ``num_threads`` are
    the threads of one product; ``batch_groups`` (at least 1) is how many groups are decoded together;
    ``device`` holds weights and caches; ``capture`` is how decode steps are made repeatable
    (``CompactDecoder``).
    """

    def __init__(
        self,
        model: Path,
        *,
        dtype: Literal["Float32", "BFloat16"] = "Float32",
        num_threads: int = 1,
        exact: bool = True,
        batch_groups: int = 1,
        device: torch.device = CPU,
        capture: Capture | None = None,
    ) -> None:
        if batch_groups < 1:
            raise ValueError(f"expected batch_groups >= 1, got {batch_groups}")
        self._path = model
        self._dtype = DTYPES[dtype]
        self._device = device
        self._capture = capture
        self._exact = exact
        self._groups_max = batch_groups
        self._executor = ThreadPoolExecutor(
            1, "embedded-engine", initializer=torch.set_num_threads, initargs=(num_threads,)
        )
        self._decoder: Decoder | None = None
        self._probe: SlotProbe | None = None
        self._version: WeightVersion | None = None
        self._watch: GenerationWatch | None = None
        self._stops = StopTexts(model)

    @property
    def version(self) -> WeightVersion | None:
        """The version that the next ``generate`` samples from; None before the first ``load``."""
        return self._version

    async def start(self) -> None:
        """Read the configuration and build the decoder; idempotent. Raises EngineError."""
        if self._decoder is None:
            await self._run(self._build)

    async def load(
        self,
        version: WeightVersion,
        weights: Path,
        changed: frozenset[str] | None = None,  # noqa: ARG002 - the seam's; this engine loads whole
    ) -> str:
        """Load a safetensors file or all of a folder, always whole; returns the digest of the tensors given to the decoder."""
        await self.start()
        digest = await self._run(lambda: self._load(weights))
        self._version = version
        return digest

    async def generate(self, requests: Sequence[GenerateRequest]) -> Sequence[Sequence[Completion]]:
        """Sample every request's group; see the seam."""
        self._watch = watch = GenerationWatch(requests)
        try:
            return await self._run(lambda: self._generate(requests, watch))
        finally:
            self._watch = None

    def interrupt(self) -> None:
        """Ask the thread that decodes to end with its present token; see the seam."""
        if self._watch is not None:
            self._watch.asked = True

    def progress(self) -> Sequence[Sequence[SampleProgress]]:
        """How far the generation under way is; see the seam."""
        return () if self._watch is None else self._watch.look()

    async def stop(self) -> None:
        """Free weights and thread; idempotent."""
        self._decoder, self._version = None, None
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _build(self) -> None:
        self._decoder = self._open_decoder()
        config = read_config(self._path)
        if self._exact and self._groups_max > 1 and config is not None:
            one_layer = replace(config, num_layers=1)
            build = partial(CompactDecoder, one_layer, self._dtype, self._device, self._capture)
            self._probe = SlotProbe(build, self._groups_max)

    def _open_decoder(self) -> Decoder:
        config = read_config(self._path)
        if config is not None:
            return CompactDecoder(config, self._dtype, self._device, self._capture)
        from rollout.engines.embedded.module import ModuleDecoder

        return ModuleDecoder(self._path, self._dtype, self._device)

    def _load(self, weights: Path) -> str:
        decoder = self._ready()
        self._version = None
        with TensorDigests() as digests:
            try:
                tensors = self._read(weights, digests.add)
            except (OSError, ValueError, SafetensorError) as error:
                raise EngineError(f"cannot read weights {weights}: {error}") from error
            decoder.load(tensors)
            digest = digests.combined()
        if self._probe is not None:
            self._probe.expect(tensors)
        return digest

    def _read(
        self, weights: Path, met: Callable[[str, torch.Tensor], None]
    ) -> Mapping[str, torch.Tensor]:
        if self._device.type == "cpu":
            return load_weights(weights, met)
        tensors: dict[str, torch.Tensor] = {}
        for file in weight_files(weights):
            for name, tensor in read_tensors(file, pinned=True).items():
                tensors[name] = tensor
                met(name, tensor)
        return tensors

    def _generate(
        self, requests: Sequence[GenerateRequest], watch: GenerationWatch
    ) -> list[list[Completion]]:
        decoder = self._ready()
        version = self._version
        if version is None:
            raise EngineError("generate was called before any weights were loaded")
        for request in requests:
            _check(request, decoder)
        results: list[list[Completion]] = [[] for _ in requests]
        with torch.inference_mode():
            for plan in self._plan(decoder, requests):
                groups = generate_batch(decoder, requests, plan, watch, self._stops)
                for index, samples in zip(plan.indices, groups, strict=True):
                    results[index] = [_completion(sample, version) for sample in samples]
        return results

    def _plan(self, decoder: Decoder, requests: Sequence[GenerateRequest]) -> list[BatchPlan]:
        if not self._exact and decoder.takes_ragged_prompts:
            return plan_batches(requests, self._groups_max)
        if self._probe is None:
            return plan_batches(requests, 1)
        widths = [self._widths(self._probe, request) for request in requests]
        self._probe.release()
        plans: list[BatchPlan] = []
        for groups_max, wanted in ((self._groups_max, True), (1, False)):
            some = [index for index, found in enumerate(widths) if bool(found) is wanted]
            picked = [requests[index] for index in some]
            plans += [
                replace(plan, indices=tuple(some[index] for index in plan.indices))
                for plan in plan_batches(picked, groups_max, [widths[index] for index in some])
            ]
        return plans

    @staticmethod
    def _widths(probe: SlotProbe, request: GenerateRequest) -> tuple[int, ...]:
        return probe.widths(num_rows(request), tokens_max(request), len(request.prompt_ids))

    def _ready(self) -> Decoder:
        if self._decoder is None:
            raise EngineError("the engine is not started")
        return self._decoder


def _check(request: GenerateRequest, decoder: Decoder) -> None:
    """Raise EngineError for a request that this model cannot serve."""
    prompt, sampling = request.prompt_ids, request.sampling
    if not prompt or sampling.max_new_tokens < 1 or sampling.temperature < 0:
        raise EngineError(
            f"expected a prompt, max_new_tokens >= 1 and temperature >= 0; got {sampling} and"
            f" {len(prompt)} prompt tokens"
        )
    if not all(request.choices):
        raise EngineError("expected at least one token in every choice, got one without any")
    given = (*prompt, *(token for choice in request.choices for token in choice))
    if not all(0 <= token < decoder.vocab_size for token in given):
        raise EngineError(f"a token is outside the vocabulary of {decoder.vocab_size}")
    positions = len(prompt) + tokens_max(request)
    if positions > decoder.positions_max:
        raise EngineError(
            f"prompt and completion need {positions} positions, the model has"
            f" {decoder.positions_max}: lower sampling.maxNewTokens"
        )


def _completion(sample: Sample, version: WeightVersion) -> Completion:
    span = VersionSpan(
        start=0, end=len(sample.token_ids), lineage=version.lineage, step=version.step
    )
    return Completion(
        token_ids=sample.token_ids,
        logprobs=sample.logprobs,
        finish=sample.finish,
        spans=(span,),
        choice_logprobs=sample.choice_logprobs,
        routes=sample.routes,
    )
