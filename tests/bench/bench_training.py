"""Training against TRL 1.16 on the same weights, tokenizer, rows, lengths, threads, optimizer and clip.

One process a side, one step each in turn, each side's own metrics computed and logged every step, no
gradient checkpointing. Ours is the product's actor and learner in one process (``one_process``), in its
default Exact mode, with the weights hashed, stored and loaded into the engine every step.

One section alone: ``run.py training grpo`` (or modes, sft, packing, memory, race, overhead). ``BENCH_PAIRS``
sets how many pairs of steps a figure rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import overhead
import race
from contest import PAIRS, SIZE, duel_of, make, ours, peaks, rates, speed, start, trl
from duel import Duel, fight
from figures import Figure
from jobs import grpo_job, gsm8k_job, manifest_of, sft_job
from real_run import write_manifest
from recipe import stage_manifest

INFO_PAIRS = min(PAIRS, 2)
SHAPES = {(128, 128): ">= 1.5", (512, 128): ">= 3.0"}
"""Tokens of prompt and completion, and the bar."""
MODES = ((2, 8, 128, 128), (4, 4, 64, 96), (3, 6, 64, 96), (2, 6, 200, 300))
"""Prompts a step, samples of each, tokens of prompt and completion, all of them used."""


def measure(section: str = "all") -> Iterator[Figure]:
    """All figures, or those of one section. Raises KeyError for an unknown one."""
    start()
    chosen = SECTIONS.values() if section == "all" else [SECTIONS[section]]
    for figures in chosen:
        yield from figures()


def grpo() -> Iterator[Figure]:
    """A whole step: load, generate, score, train, seal; and TRL's, with what it would do by default."""
    for shape, bar in SHAPES.items():
        name = f"grpo {shape[0]}+{shape[1]}"
        found = _grpo_duel(*shape)
        yield speed(f"{name} samples/s vs TRL", found, "samples", bar)
        yield from rates(name, found, "samples")
    yield from _defaults()


def _defaults() -> Iterator[Figure]:
    job = make(lambda folder: grpo_job(folder, 128, 128, SIZE))
    checkpointing = replace(job, gradient_checkpointing=True)
    sides = {"trl": trl(checkpointing), "ours": ours(job), "fast": ours(replace(job, mode="Fast"))}
    found = fight(sides, [INFO_PAIRS])
    yield speed("grpo 128+128 vs TRL with checkpointing", found, "samples", "info")
    yield speed("grpo 128+128, Fast over Exact", found, "samples", "info", pair=("fast", "ours"))


def modes() -> Iterator[Figure]:
    """What Exact costs a whole step, where groups share a batch of fixed slots."""
    for prompts, group, prompt, new in MODES:
        job = make(lambda folder, a=prompt, b=new: grpo_job(folder, a, b, SIZE))
        job = replace(job, prompts_per_step=prompts, group_size=group)
        found = fight({"fast": ours(replace(job, mode="Fast")), "exact": ours(job)}, [PAIRS])
        name = f"grpo {prompts} x {group}, {prompt}+{new}, Fast over Exact"
        yield speed(name, found, "samples", "info", pair=("fast", "exact"))


def sft() -> Iterator[Figure]:
    """Rows of one length, 8 a step."""
    found = _sft_duel()
    yield speed("sft tokens/s vs TRL", found, "tokens", ">= 1.0")
    yield from rates("sft", found, "tokens")


def packing() -> Iterator[Figure]:
    """GSM8K at most 1024 tokens a row, packed by both; tokens are real ones."""
    job = make(lambda folder: gsm8k_job(folder, SIZE))
    found = fight({"ours": ours(job), "trl": trl(job)}, [PAIRS])
    yield speed("sft packing on GSM8K lengths vs TRL", found, "tokens", ">= 1.0")
    yield from rates("sft packing", found, "tokens")
    padded = replace(job, trl_packing=False, trl_rows=8, trl_accumulate=2)
    found = fight({"ours": ours(job), "trl": trl(padded)}, [INFO_PAIRS])
    yield speed("sft on GSM8K lengths vs TRL padded", found, "tokens", "info")


def memory() -> Iterator[Figure]:
    """Peak resident memory of the process after equal steps."""
    duels = {f"grpo {a}+{b}": _grpo_duel(a, b) for a, b in SHAPES} | {"sft": _sft_duel()}
    for name, found in duels.items():
        yield from peaks(name, found)


def overheads() -> Iterator[Figure]:
    """Real runs of three processes and a supervisor."""
    with TemporaryDirectory(prefix="rollout-bench-overhead-") as name:
        folder = Path(name)
        (folder / "large").mkdir()
        job = make(lambda folder: grpo_job(folder, 128, 128, SIZE))
        large = write_manifest(folder / "large.yaml", manifest_of(job))
        found = overhead.compare(large, folder / "large", steps=PAIRS, rounds=2)
        yield from overhead.describe("25 M model", found, share=True)
        (folder / "tiny").mkdir()
        stage = stage_manifest(folder)
        stage["spec"]["train"]["schedule"] = {"constant": {}}  # short runs have no room to warm up
        tiny = write_manifest(folder / "tiny.yaml", stage)
        found = overhead.compare(tiny, folder / "tiny", steps=5 * PAIRS, rounds=2)
        yield from overhead.describe("main job", found, share=False)


SECTIONS: dict[str, Callable[[], Iterator[Figure]]] = {
    "grpo": grpo,
    "modes": modes,
    "sft": sft,
    "packing": packing,
    "memory": memory,
    "race": race.measure,
    "overhead": overheads,
}


def _grpo_duel(prompt_tokens: int, new_tokens: int) -> Duel:
    return duel_of(make(lambda folder: grpo_job(folder, prompt_tokens, new_tokens, SIZE)))


def _sft_duel() -> Duel:
    return duel_of(make(lambda folder: sft_job(folder, model=SIZE)))
