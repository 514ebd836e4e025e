"""Training against TRL 1.16 on the same weights, tokenizer, rows, lengths, threads, optimizer and clip.

One process a side, one step each in turn, each side's own metrics computed and logged every step, no
gradient checkpointing. Ours is the product's actor and learner in one process (``one_process``), in its
default Exact mode, with the weights hashed, stored and loaded into the engine every step.

One section alone: ``run.py training grpo`` (or sft, packing, memory, race, overhead). ``BENCH_PAIRS``
sets how many pairs of steps a figure rests on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import overhead
import race
from duel import Duel, Side, fight, pin, split_rounds
from figures import Figure, level, ratio
from jobs import MODEL, Job, grpo_job, gsm8k_job, manifest_of, sft_job
from real_run import write_manifest
from recipe import stage_manifest

PAIRS = int(os.environ.get("BENCH_PAIRS", "6"))
INFO_PAIRS = min(PAIRS, 2)
SHAPES = {(128, 128): ">= 1.3", (512, 128): ">= 1.6"}
"""Tokens of prompt and completion, and the bar."""
SIZE = os.environ.get("BENCH_MODEL", MODEL)
"""Another model is for trying the benchmark itself."""
GIB = 2**30


def measure(section: str = "all") -> Iterator[Figure]:
    """All figures, or those of one section. Raises KeyError for an unknown one."""
    pin()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing started here is left
    chosen = SECTIONS.values() if section == "all" else [SECTIONS[section]]
    for figures in chosen:
        yield from figures()


def grpo() -> Iterator[Figure]:
    """A whole step: load, generate, score, train, seal; and TRL's, with what it would do by default."""
    for shape, bar in SHAPES.items():
        name = f"grpo {shape[0]}+{shape[1]}"
        found = _grpo_duel(*shape)
        yield _ratio(f"{name} samples/s vs TRL", found, "samples", bar)
        yield from _rates(name, found, "samples")
    yield from _defaults()


def _defaults() -> Iterator[Figure]:
    job = _job(lambda folder: grpo_job(folder, 128, 128, SIZE))
    checkpointing = replace(job, gradient_checkpointing=True)
    sides = {"trl": _trl(checkpointing), "ours": _ours(job), "fast": _ours(job, mode="Fast")}
    found = fight(sides, [INFO_PAIRS])
    yield _ratio("grpo 128+128 vs TRL with checkpointing", found, "samples", "info")
    yield _ratio("grpo 128+128, Fast over Exact", found, "samples", "info", pair=("fast", "ours"))


def sft() -> Iterator[Figure]:
    """Rows of one length, 8 a step."""
    found = _sft_duel()
    yield _ratio("sft tokens/s vs TRL", found, "tokens", ">= 1.0")
    yield from _rates("sft", found, "tokens")


def packing() -> Iterator[Figure]:
    """GSM8K at most 1024 tokens a row, packed by both; tokens are real ones."""
    job = _job(lambda folder: gsm8k_job(folder, SIZE))
    found = fight({"ours": _ours(job), "trl": _trl(job)}, [PAIRS])
    yield _ratio("sft packing on GSM8K lengths vs TRL", found, "tokens", ">= 1.0")
    yield from _rates("sft packing", found, "tokens")
    padded = replace(job, trl_packing=False, trl_rows=8, trl_accumulate=2)
    found = fight({"ours": _ours(job), "trl": _trl(padded)}, [INFO_PAIRS])
    yield _ratio("sft on GSM8K lengths vs TRL padded", found, "tokens", "info")


def memory() -> Iterator[Figure]:
    """Peak resident memory of the process after equal steps, libraries and all; and without them."""
    duels = {f"grpo {a}+{b}": _grpo_duel(a, b) for a, b in SHAPES} | {"sft": _sft_duel()}
    for name, found in duels.items():
        ends = {side: [turn["peak_bytes"] for turn in found.last[side]] for side in found.last}
        yield _quotient(f"learner peak memory, {name}, ours / TRL", ends, "<= 1.0")
        for side, values in ends.items():
            sized = [value / GIB for value in values]
            yield level(f"peak memory, {name}, {side}", sized, "GiB", "info")
        added = {
            side: [b - turn["now_bytes"] for b, turn in zip(ends[side], said, strict=True)]
            for side, said in found.ready.items()
        }
        yield _quotient(f"peak above the loaded model, {name}, ours / TRL", added, "info")


def overheads() -> Iterator[Figure]:
    """Real runs of three processes and a supervisor."""
    with TemporaryDirectory(prefix="rollout-bench-overhead-") as name:
        folder = Path(name)
        (folder / "large").mkdir()
        job = _job(lambda folder: grpo_job(folder, 128, 128, SIZE))
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
    "sft": sft,
    "packing": packing,
    "memory": memory,
    "race": race.measure,
    "overhead": overheads,
}

_stack = ExitStack()


@cache
def _folder() -> Path:
    """Where jobs and rows lie; removed when this process ends."""
    return Path(_stack.enter_context(TemporaryDirectory(prefix="rollout-bench-jobs-")))


def _job(build: Callable[[Path], Job]) -> Job:
    return build(_folder())


def _write(job: Job) -> str:
    return job.write(_folder(), f"job-{abs(hash(job))}")


def _ours(job: Job, mode: str = "Exact") -> Side:
    return Side(script="our_side.py", arguments=(_write(replace(job, mode=mode)),))


def _trl(job: Job) -> Side:
    return Side(script="trl_side.py", arguments=(_write(job),))


@cache
def _grpo_duel(prompt_tokens: int, new_tokens: int) -> Duel:
    job = _job(lambda folder: grpo_job(folder, prompt_tokens, new_tokens, SIZE))
    return fight({"ours": _ours(job), "trl": _trl(job)}, split_rounds(PAIRS))


@cache
def _sft_duel() -> Duel:
    job = _job(lambda folder: sft_job(folder, model=SIZE))
    return fight({"ours": _ours(job), "trl": _trl(job)}, split_rounds(PAIRS))


def _ratio(
    name: str, found: Duel, unit: str, bar: str, pair: tuple[str, str] = ("ours", "trl")
) -> Figure:
    """Ours over theirs in units per second, with everything that was measured as raw samples."""
    sides = [found.seconds_per(side, unit) for side in pair]
    figure = ratio(name, *sides, bar)
    raw = {
        f"{side}_{what}": found.values(side, what)
        for side in found.turns
        for what in ("seconds", "cpu_seconds", "peak_bytes", unit, "loss", "num_metrics")
    }
    phases = {
        f"{side}_{phase}_seconds": [turn["phases"][phase] for turn in turns]
        for side, turns in found.turns.items()
        for phase in turns[0].get("phases", {})
    }
    return replace(figure, samples={**figure.samples, **raw, **phases})


def _rates(name: str, found: Duel, unit: str) -> Iterator[Figure]:
    for side in found.turns:
        rates = [1 / seconds for seconds in found.seconds_per(side, unit)]
        yield level(f"{name}, {side}", rates, f"{unit}/s", "info")


def _quotient(name: str, values: dict[str, Sequence[float]], bar: str) -> Figure:
    quotients = [a / b for a, b in zip(values["ours"], values["trl"], strict=True)]
    figure = level(name, quotients, "x", bar)
    return replace(figure, samples={side: list(found) for side, found in values.items()})
