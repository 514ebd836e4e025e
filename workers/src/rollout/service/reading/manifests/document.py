"""The manifest of a recorded loop: what every algorithm has in common, and the sum of what is left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollout.rendering.plain import PlainRenderer
from rollout.service.calls import ALPHA
from rollout.service.reading.finding import OpenedModel
from rollout.service.reading.manifests.loop import (
    SUPERVISED,
    LoopRefused,
    RecordedLoop,
    record_loop,
)
from rollout.service.reading.manifests.policy import number, write_policy
from rollout.service.reading.manifests.schedule import fit_schedule
from rollout.service.reading.manifests.supervised import WriteRow, write_supervised

REWARD = '''"""The reward of the recorded loop, which no book holds: put yours in."""


def reward(prompts, completions, rows):
    """One number for each completion (docs/how-to/write-a-reward.md)."""
    raise NotImplementedError("reward.py: write the reward that your loop computed, one number for each completion")
'''


NUMBERS = ("beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")
"""Of a step, beside its learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredManifest:
    """``document`` is of a RolloutRun; ``left_out`` one sentence for each thing that it does not say."""

    document: dict[str, Any]
    algorithm: str
    steps: int
    left_out: tuple[str, ...]


def infer_manifest(
    opened: OpenedModel, uri: str, name: str, renderer: PlainRenderer, write: WriteRow
) -> InferredManifest:
    """The manifest; ``write`` takes the rows of its data. Raises LoopRefused with the reasons, LedgerError."""
    loop = record_loop(opened)
    supervised = SUPERVISED in loop.losses
    writes = write_supervised if supervised else write_policy
    train, left_out = writes(opened, loop, renderer, write)
    optimizer, said = _optimizer(loop)
    document = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": name},
        "spec": {
            "model": _model(opened, uri),
            "train": {**train, **optimizer, "maxSteps": loop.steps},
        },
    }
    return InferredManifest(
        document=document,
        algorithm="sft" if supervised else "grpo",
        steps=loop.steps,
        left_out=(*left_out, *said, *_common(opened, loop)),
    )


def _model(opened: OpenedModel, uri: str) -> dict[str, Any]:
    adapter = opened.model.adapter
    model = {"uri": uri, "dtype": "Float32", "chatTemplate": "plain"}
    if adapter is None:
        return model
    return model | {
        "lora": {"rank": adapter.rank, "alpha": ALPHA, "targets": list(adapter.targets)}
    }


def _optimizer(loop: RecordedLoop) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    asked = dict(loop.optimizers.most_common(1)[0][0])
    if len(loop.optimizers) > 1:
        said.append(
            "the optimizer's numbers change from step to step: the manifest has the most frequent"
        )
    found = fit_schedule(loop.rates)
    if found is None:
        found = loop.rates[0], {"constant": {}}
        span = f"{min(loop.rates):g} to {max(loop.rates):g}"
        said.append(
            f"learning rates ({span}) follow no schedule of a manifest: it has the first step's for all"
        )
    said += [
        f"{name} {value} of optim_step is in no manifest"
        for name, value in asked.items()
        if name not in NUMBERS and value
    ]
    peak, schedule = found
    adamw = {
        "learningRate": number(peak),
        "beta1": number(asked["beta1"]),
        "beta2": number(asked["beta2"]),
    }
    if asked["eps"] > 0:
        adamw["epsilon"] = number(asked["eps"])
    else:
        said.append("eps 0 is in no manifest: it has the default, 1e-8")
    adamw["weightDecay"] = number(asked["weight_decay"])
    clip = asked["grad_clip_norm"]
    if clip:
        said.append(
            f"gradients of sums were clipped at {clip:g}: those of the run's means are other, and seldom reach it"
        )
    settings = {"optimizer": {"adamw": adamw}, "schedule": schedule, "maxGradNorm": number(clip)}
    return settings, said


def _common(opened: OpenedModel, loop: RecordedLoop) -> list[str]:
    start, adapter = opened.model.start, opened.model.adapter
    sizes = f"{loop.sequences_min} to {loop.sequences_max}"
    said = [
        (
            start is not None,
            f"the model begins from {start.path if start else ''}: the run begins from the base",
        ),
        (
            loop.sequences_min != loop.sequences_max,
            f"steps had {sizes} sequences: the manifest has one size for all",
        ),
        (
            loop.forward_only,
            f"{loop.forward_only} calls computed losses alone (an evaluation, or a loss of the client's own): not in it",
        ),
        (loop.refused, f"{loop.refused} calls were refused: not in it"),
        (
            loop.ungathered,
            f"the gradients of the last {loop.ungathered} calls were never applied: not in it",
        ),
        (loop.waiting, f"{loop.waiting} calls wait for their answers: not in it"),
        (
            adapter is not None,
            f"the adapter was drawn with seed {adapter and adapter.seed}: the run draws its own",
        ),
    ]
    kinds = [f"{count} calls of {kind}: not in it" for kind, count in loop.others.items()]
    return [*kinds, *(text for holds, text in said if holds)]


__all__ = ["REWARD", "InferredManifest", "LoopRefused", "infer_manifest"]
