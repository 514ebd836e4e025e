"""Samplers: completions of fixed weights, computed by the embedded engine, drawn with noise that belongs to the call.

An answer depends on weights, prompt, settings and seeds alone: made again after a kill it is the same, bit for bit. A few
engines stay loaded; another version takes the place of the one that was asked longest ago.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.errors import EngineError
from rollout.service.calls import (
    RefusedAnswer,
    SampleAnswer,
    SampleCall,
    SampledSequence,
    SampleOutcome,
)
from rollout.service.wire.conversions import pack_reals, pack_tokens
from rollout.types import Completion, GenerateRequest, SamplingParams, WeightVersion
from rollout_api.checks.accelerators.memory import SERVICE_ENGINES_MAX

ENGINES_MAX = SERVICE_ENGINES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerWeights:
    """What a sampler draws from: the folder of its base, and its weights as a file."""

    folder: Path
    file: Path
    digest: str


class SamplerPool:
    """Owns the engines. One call at a time."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._engines: OrderedDict[str, EmbeddedEngine] = OrderedDict()

    async def sample(self, weights: SamplerWeights, call: SampleCall) -> SampleOutcome:
        """The completions of a call, or why the engine cannot make them."""
        request = GenerateRequest(
            prompt_ids=call.prompt,
            seeds=call.seeds,
            sampling=SamplingParams(
                max_new_tokens=call.max_tokens,
                temperature=call.temperature,
                top_k=call.top_k,
                top_p=call.top_p,
                stop_token_ids=call.stop_ids,
                stop=call.stop,
            ),
        )
        engine = await self._engine(weights)
        try:
            (group,) = await engine.generate([request])
        except EngineError as error:
            return RefusedAnswer(error=f"sample: {error}")
        return SampleAnswer(sequences=tuple(map(_sequence, group)))

    async def close(self) -> None:
        """Free all engines."""
        while self._engines:
            await self._engines.popitem()[1].stop()

    async def _engine(self, weights: SamplerWeights) -> EmbeddedEngine:
        engine = self._engines.get(weights.digest)
        if engine is None:
            while len(self._engines) >= ENGINES_MAX:
                await self._engines.popitem(last=False)[1].stop()
            engine = EmbeddedEngine(weights.folder, num_threads=self._threads)
            version = WeightVersion(
                lineage=0, step=0, digest=weights.digest, object=weights.file.name
            )
            found = ""
            try:
                found = await engine.load(version, weights.file)
            finally:
                if found != weights.digest:
                    await engine.stop()
            if found != weights.digest:
                raise EngineError(f"{weights.file} holds {found}, not the weights that were saved")
            self._engines[weights.digest] = engine
        self._engines.move_to_end(weights.digest)
        return engine


def _sequence(completion: Completion) -> SampledSequence:
    return SampledSequence(
        tokens=pack_tokens(completion.token_ids),
        logprobs=pack_reals(completion.logprobs),
        stopped=completion.finish == "stop",
    )
