"""The files that say which version is the newest and which the best, and what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from rollout.coordinator.context import RunContext
from rollout.coordinator.rules.evaluation import Best, choose_best
from rollout.objects.filesystem import write_atomically


async def write_references(run: RunContext) -> None:
    """Keep ``Latest`` and ``Best`` pointing at what they say, atomically."""
    if run.state.anchors:
        latest = msgspec.to_builtins(run.state.anchors[-1])
        await _write_reference(run, "Latest", {**latest, "anchor": latest["name"]})
    best = find_best(run)
    if best is not None and (best.result.lineage, best.result.step) in run.state.versions:
        await _write_reference(run, "Best", describe_best(run, best))


def find_best(run: RunContext) -> Best | None:
    """The best version so far on the selecting evaluation."""
    return choose_best(run.plan.evaluations, run.state.results())


def describe_best(run: RunContext, best: Best) -> dict[str, Any]:
    """The content of ``Best.json``: a weights-only manifest, and why it is the best."""
    version = run.state.versions[(best.result.lineage, best.result.step)]
    return {
        "lineage": version.lineage,
        "step": version.step,
        "version": msgspec.to_builtins(version),
        "objects": {"weights": version.object},
        "grade": run.plan.numerics.grade,
        "evaluation": best.result.name,
        "split": best.result.split,
        "metric": best.metric,
        "value": best.value,
        "summary": dict(best.result.summary),
    }


async def _write_reference(run: RunContext, name: str, content: Mapping[str, Any]) -> None:
    data = msgspec.json.format(msgspec.json.encode({**content, "name": name}), indent=2) + b"\n"
    if run.references.get(name) != data:
        await asyncio.to_thread(write_atomically, run.snapshots / f"{name}.json", data)
        run.references[name] = data
