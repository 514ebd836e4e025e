"""The embedded engine's decode step on one device: captured as CUDA graphs, and the same steps started one by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from figures import Figure, level, ratio

from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.engines.embedded.steps.capture import Capture, repeat_plainly
from rollout.learner.model.numerics import apply_numerics
from rollout.types import Completion, GenerateRequest, SamplingParams, WeightVersion
from rollout.weights.digest import digest_tensors, load_weights

PROMPTS, SAMPLES = 4, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Seconds of every generation after the first, the first's, and what the last gave."""

    seconds: list[float]
    first: float
    found: list[list[Completion]]


def decode_figures(
    folder: Path, device: torch.device, *, tokens: int, rounds: int
) -> Iterator[Figure]:
    """PROMPTS x SAMPLES of ``tokens`` behind as many, in Exact."""
    apply_numerics(threads=torch.get_num_threads(), exact=True)
    try:
        graphs = _decode(
            folder, device, tokens, rounds, None if device.type == "cuda" else repeat_plainly
        )
        plain = _decode(folder, device, tokens, rounds, repeat_plainly)
    finally:
        apply_numerics(threads=torch.get_num_threads(), exact=False)
    name = f"decode {PROMPTS} x {SAMPLES} of {tokens}+{tokens}, Exact"
    yield ratio(f"{name}, plain / graphs", graphs.seconds, plain.seconds, ">= 3.0")
    for side, found in (("graphs", graphs), ("plain", plain)):
        each = [1e3 * one / tokens for one in found.seconds]
        yield level(f"{name}, {side}: a token of all samples", each, "ms", "info")
    yield level(f"{name}, graphs: first generation", [graphs.first], "s", "info")
    unlike = sum(
        one != other
        for ours, theirs in zip(graphs.found, plain.found, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    )
    yield level(f"{name}: samples that differ in a bit", [float(unlike)], "samples", "<= 0")


def _decode(
    folder: Path, device: torch.device, tokens: int, rounds: int, capture: Capture | None
) -> Decoding:
    requests = [_request(index, tokens) for index in range(PROMPTS)]

    async def run() -> Decoding:
        engine = EmbeddedEngine(
            folder,
            dtype="BFloat16",
            exact=True,
            batch_groups=PROMPTS,
            device=device,
            capture=capture,
        )
        weights = folder / "model.safetensors"
        digest = digest_tensors(load_weights(weights))
        await engine.load(WeightVersion(lineage=0, step=0, digest=digest, object=digest), weights)
        seconds, found = [], []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            found = await engine.generate(requests)
            seconds.append(time.perf_counter() - began)
        await engine.stop()
        return Decoding(seconds=seconds[1:], first=seconds[0], found=[list(one) for one in found])

    return asyncio.run(run())


def _request(index: int, tokens: int) -> GenerateRequest:
    noise = torch.Generator().manual_seed(index)
    return GenerateRequest(
        prompt_ids=tuple(torch.randint(3, 500, (tokens,), generator=noise).tolist()),
        seeds=tuple(range(100 * index, 100 * index + SAMPLES)),
        sampling=SamplingParams(max_new_tokens=tokens, temperature=1.0),
    )
