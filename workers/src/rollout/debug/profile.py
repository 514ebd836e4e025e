"""Where the time of a learner's steps goes: phases by the clock, operators by torch's profiler.

Recorded steps are taken again, as in ``replay``. Phases follow one another without gaps, so their seconds
add up to the whole; the profiler's own cost is in them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from rollout.algorithms.aggregation import Denominators
from rollout.debug.bench import Bench, advance, begin, follow, open_bench
from rollout.errors import SpecError
from rollout.learner.batch_step import StepResult, prepare_step
from rollout.learner.checkpoint import Progress
from rollout.learner.objectives.contract import MicroLoss, ValuePart, ValueWork, Work
from rollout.learner.objectives.plan import GroupShape, MicroBatch, Update, decode_plan
from rollout.learner.state_digest import seal_step
from rollout.learner.train_step import run_step

OPERATORS_MAX = 20
"""Operators in the table, the most expensive first; the trace has all."""
WARM_UP_STEPS = 1
"""Steps before the first that counts: they pay for memory and kernels that later ones find ready."""


class PhaseProfile:
    """Time by phase: every moment between ``start`` and ``stop`` belongs to the phase entered last."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: dict[str, float] = {}
        self._name = ""
        self._mark = 0.0
        self._range: record_function | None = None

    def enter(self, name: str) -> None:
        """From now on the time is ``name``'s; empty: nobody's. The phase is a range of the trace too."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._mark
        if self._range is not None:
            self._range.__exit__(None, None, None)
        self._range = record_function(f"phase: {name}") if name else None
        if self._range is not None:
            self._range.__enter__()
        self._name, self._mark = name, now


class Timed:
    """A step's work whose phases are told; in all else the work itself."""

    def __init__(self, work: Work, phases: PhaseProfile) -> None:
        self._work = work
        self._phases = phases

    def shapes(self) -> Sequence[GroupShape]:
        """As the work."""
        return self._work.shapes()

    def prepare(self, model: nn.Module, passes: Sequence[Sequence[MicroBatch]]) -> None:
        """As the work: old and reference logprobs."""
        self._phases.enter("scoring without gradient")
        self._work.prepare(model, passes)
        self._phases.enter("other")

    def denominators(self, update: Update) -> Denominators:
        """As the work."""
        return self._work.denominators(update)

    def micro_loss(self, model: nn.Module, micro: MicroBatch, whole: Denominators) -> MicroLoss:
        """As the work; what follows is its backward, or the norm of the gradient."""
        self._phases.enter("forward and loss")
        part = self._work.micro_loss(model, micro, whole)
        self._phases.enter("backward and gradient norm")
        return part

    def value_loss(self, critic: nn.Module, micro: MicroBatch, whole: Denominators) -> ValuePart:
        """As the work, which has a critic where this is called."""
        assert isinstance(self._work, ValueWork)
        self._phases.enter("critic's forward and loss")
        part = self._work.value_loss(critic, micro, whole)
        self._phases.enter("backward and gradient norm")
        return part

    def filtered(self) -> Mapping[int, str]:
        """As the work."""
        return self._work.filtered()

    def metrics(self, step: int) -> dict[str, Any]:
        """As the work."""
        return self._work.metrics(step)


def profile_steps(run_dir: Path, *, after: int, num_steps: int, trace: Path) -> dict[str, Any]:
    """Take up to ``num_steps`` recorded steps after ``after`` again under the profiler; write the trace.

    ``phases`` and ``operators`` hold seconds and shares, ``steps`` the steps that were measured. The
    trace is a file of the Chrome trace format, for chrome://tracing or ui.perfetto.dev.
    Raises SpecError, LedgerError, DataError or StoreError.
    """
    with open_bench(run_dir) as bench:
        last = bench.recording.last_step
        if not 0 <= after < last:
            raise SpecError(f"--from {after}: this run has committed steps 1 to {last}")
        progress = _stand(bench, max(0, after - WARM_UP_STEPS))
        while progress.step < after:
            progress = advance(bench, progress)[0].progress
        device = bench.parts.parallel.device
        phases = PhaseProfile(device)
        steps = list(range(after + 1, min(after + num_steps, last) + 1))
        with profile(activities=_activities(device)) as found, _hooks(bench, phases):
            for _ in steps:
                progress = _step(bench, progress, phases)
        trace.parent.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(trace))
    return {
        "steps": steps,
        "phases": _shares(phases.seconds),
        "operators": _operators(found, device),
        "trace": str(trace),
    }


def _stand(bench: Bench, at: int) -> Progress:
    progress = begin(bench, at).progress
    while progress.step < at:
        progress = advance(bench, progress)[0].progress
    return progress


def _activities(device: torch.device) -> list[ProfilerActivity]:
    gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    return [ProfilerActivity.CPU, *gpu]


@contextmanager
def _hooks(bench: Bench, phases: PhaseProfile) -> Iterator[None]:
    """Tell when the optimizer works; all its time is between the two hooks."""
    optimizer = bench.parts.trainer.optimizer
    handles = [
        optimizer.register_step_pre_hook(lambda *_: phases.enter("optimizer")),
        optimizer.register_step_post_hook(lambda *_: phases.enter("other")),
    ]
    try:
        yield
    finally:
        phases.enter("")
        for handle in handles:
            handle.remove()


def _step(bench: Bench, progress: Progress, phases: PhaseProfile) -> Progress:
    """One recorded step, phase by phase: the same calls as a replay's."""
    parts, recording = bench.parts, bench.recording
    phases.enter("reading the batch")
    record = recording.record(progress.step + 1)
    progress = follow(bench, progress, record.lineage)
    batch = recording.batch(record.step)
    phases.enter("laying out")
    ready = prepare_step(parts, progress, batch, decode_plan(record.plan))
    phases.enter("other")
    metrics = run_step(parts.trainer, Timed(ready.work, phases), ready.plan, ready.step)
    phases.enter("digests")
    done = StepResult(
        step=ready.step,
        consumed=(),
        filtered={},
        plan=ready.plan,
        tokens=ready.tokens,
        cursor=ready.cursor,
        metrics=metrics,
    )
    sealed = seal_step(parts.trainer, None, progress.chain, done)
    phases.enter("")
    return replace(
        progress,
        step=done.step,
        chain=sealed.chain,
        version=record.version,
        cursor=done.cursor,
    )


def _shares(seconds: Mapping[str, float]) -> list[dict[str, Any]]:
    whole = sum(seconds.values()) or 1.0
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return [{"phase": name, "seconds": own, "share": own / whole} for name, own in ordered]


def _operators(found: profile, device: torch.device) -> list[dict[str, Any]]:
    """Operators by the time they take themselves, on the device that computes."""
    kind = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    events = [event for event in found.key_averages() if not event.key.startswith("phase: ")]
    whole = sum(getattr(event, kind) for event in events) or 1.0
    ordered = sorted(events, key=lambda event: -getattr(event, kind))[:OPERATORS_MAX]
    return [
        {
            "operator": event.key,
            "calls": event.count,
            "seconds": getattr(event, kind) / 1e6,
            "share": getattr(event, kind) / whole,
        }
        for event in ordered
    ]
