"""Every kind of algorithm against TRL 1.16: one step each in turn, on the same weights, rows and lengths.

What is equal: weights file, tokenizer, rows and their order, forced lengths, float32, AdamW at 1e-5,
clip 1.0, threads, no gradient checkpointing; each side computes and logs its own metrics at every
step. Preference rows are 64 tokens of prompt and 64 of answer. TRL's KTO takes its KL from the
micro-batch, which is here the whole step, as ours.

One section alone: ``run.py algorithms dpo`` (or sft, kto, rm, grpo). ``BENCH_PAIRS`` sets how many
pairs of steps a figure rests on. Tiny models measure what surrounds the arithmetic, not an accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from contest import SIZE, duel_of, make, peaks, rates, speed, start
from duel import Duel
from figures import Figure, level, ratio
from jobs import Job, grpo_job, sft_job
from preference_jobs import dpo_job, kto_job, rm_job


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """``unit`` names what is counted, ``counted`` is its name in a turn's report."""

    job: Callable[[Path], Job]
    unit: str
    counted: str = "samples"


def _sft_job(folder: Path) -> Job:
    return replace(sft_job(folder, model=SIZE), ordered=True)


SECTIONS: Mapping[str, Contest] = {
    "sft": Contest(job=_sft_job, unit="tokens", counted="tokens"),
    "dpo": Contest(job=lambda folder: dpo_job(folder, SIZE), unit="pairs"),
    "kto": Contest(job=lambda folder: kto_job(folder, SIZE), unit="rows"),
    "rm": Contest(job=lambda folder: rm_job(folder, SIZE), unit="pairs"),
    "grpo": Contest(job=lambda folder: grpo_job(folder, 128, 128, SIZE), unit="samples"),
}


def measure(section: str = "all") -> Iterator[Figure]:
    """All figures, or those of one section. Raises KeyError for an unknown one."""
    start()
    for name in SECTIONS if section == "all" else [section]:
        yield from _figures(name, SECTIONS[name])


def _figures(name: str, contest: Contest) -> Iterator[Figure]:
    job = make(contest.job)
    found = duel_of(job)
    yield speed(f"{name} {contest.unit}/s vs TRL", found, contest.counted, ">= 1.0")
    yield _effort(name, found)
    yield from rates(name, found, contest.counted, contest.unit)
    yield from peaks(name, found)
    if job.ordered:
        yield _distance(name, found)


def _effort(name: str, found: Duel) -> Figure:
    """How much more processor time TRL takes: what is left to compare on a machine that is not idle."""
    times = [found.values(side, "cpu_seconds") for side in ("ours", "trl")]
    return ratio(f"{name} processor time, TRL / ours", *times, "info")


def _distance(name: str, found: Duel) -> Figure:
    """How far the sides' losses are apart, step by step: they do the same work."""
    losses = zip(found.values("ours", "loss"), found.values("trl", "loss"), strict=True)
    return level(f"{name} loss, ours - TRL", [abs(a - b) for a, b in losses], "nats", "<= 0.001")
