"""The reinforcement stage of the main job, as both sides of the race are given it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from real_run import run_to_end, write_manifest

from rollout.data.build import build_source
from rollout.environments.build import build_environment
from rollout.evaluations.build import build_suite
from rollout.models.resolve import resolve_model
from rollout.objects.filesystem import FilesystemStore
from rollout.runs.manifest import Document, load_documents
from rollout.runs.pipeline import materialise_model, order_runs, read_snapshot
from rollout.runs.prepare import prepare_run
from rollout.types import Row
from rollout_api.v1alpha1.run import RolloutRunSpec

SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "addition-sft-grpo.yaml"
EVALUATE_EVERY, EVALUATE_PROMPTS = 10, 500
STEPS_MAX = 2000
"""A constant learning rate may go on for so long; the race has its own end."""

FALLBACK: dict[str, Any] = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "addition"},
    "spec": {
        "model": {"uri": "rollout://tiny-adder"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 32, "groupSize": 8, "clipHigh": "0.28"}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "optimizer": {"adamw": {"learningRate": "1e-4"}},
            "schedule": {"constant": {"warmupSteps": 10}},
            "maxSteps": STEPS_MAX,
        },
    },
}
"""Used while the sample is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """What TRL needs to do the same. ``loss_type`` and ``scale_rewards`` are TRL's names."""

    model: str
    train_rows: str
    held_out_rows: str
    prompts_per_step: int
    group_size: int
    new_tokens: int
    temperature: float
    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    warmup_steps: int
    max_grad_norm: float
    clip_low: float
    clip_high: float
    loss_type: str
    scale_rewards: str
    evaluate_every: int
    steps: int
    seed: int = 0


def stage_manifest(folder: Path) -> dict[str, Any]:
    """The GRPO stage as a run of its own, from a model folder, without evaluations.

    What comes before it in the sample is run here, once.
    """
    if not SAMPLE.exists():
        data = json.loads(json.dumps(FALLBACK))
        data["spec"]["model"] = {"uri": f"file://{resolve_model('rollout://tiny-adder').path}"}
        return data
    documents = order_runs(load_documents(SAMPLE))
    stage = next(d for d in documents if "grpo" in d.data["spec"]["train"]["algorithm"])
    data = _absolute(stage)
    spec = data["spec"]
    spec["model"] = {**spec["model"], "uri": f"file://{_starting_model(spec, documents, folder)}"}
    spec["model"].pop("fromRun", None)
    spec.pop("evaluations", None)
    return data


def _absolute(document: Document) -> dict[str, Any]:
    """The manifest with presets filled in, and its paths good from any folder."""
    prepared = prepare_run(document)
    spec = prepared.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**FALLBACK, "metadata": {"name": prepared.name}, "spec": spec}


def _starting_model(spec: dict[str, Any], documents: tuple[Document, ...], folder: Path) -> Path:
    wanted = spec["model"].get("fromRun")
    if wanted is None:
        return resolve_model(spec["model"]["uri"]).path
    before = next(d for d in documents if d.data["metadata"]["name"] == wanted["name"])
    run = run_to_end(write_manifest(folder / "before.yaml", _absolute(before)), folder / "before")
    config = json.loads(run.worker_config.read_text())
    weights = read_snapshot(run, wanted["snapshot"])["version"]["object"]
    return materialise_model(
        config_path=Path(config["resolved"]["modelPath"]),
        weights=FilesystemStore(run.objects).path(weights),
        target=folder / "start",
    )


def race_manifest(stage: dict[str, Any]) -> dict[str, Any]:
    """The stage with the race's evaluation, and no end of its own where the schedule has none."""
    data = json.loads(json.dumps(stage))
    train = data["spec"]["train"]
    if "constant" in train.get("schedule", {"constant": {}}):
        train["maxSteps"] = STEPS_MAX
    data["spec"]["evaluations"] = [
        {
            "name": "held-out",
            "suite": {"builtin": {"name": "arithmetic"}},
            "everySteps": EVALUATE_EVERY,
            "maxPrompts": EVALUATE_PROMPTS,
            "atEnd": False,
        }
    ]
    return data


def race_of(manifest: Path, folder: Path) -> Race:
    """The manifest in TRL's words, with the rows of training and of the held-out questions."""
    spec = prepare_run(load_documents(manifest)[0]).spec
    train = spec.train
    assert train is not None
    grpo, adamw = train.algorithm.grpo, train.optimizer.adamw
    assert grpo is not None
    assert adamw is not None
    assert train.schedule.constant is not None, "TRL's schedules are others"
    assert spec.model.uri is not None
    training, held_out = _rows(spec)
    return Race(
        model=spec.model.uri.removeprefix("file://"),
        train_rows=_write(folder / "train.jsonl", training),
        held_out_rows=_write(folder / "held-out.jsonl", held_out),
        prompts_per_step=grpo.prompts_per_step,
        group_size=grpo.group_size,
        new_tokens=train.sampling.max_new_tokens or 8,
        temperature=float(train.sampling.temperature),
        learning_rate=float(adamw.learning_rate or 1e-6),
        betas=(float(adamw.beta1), float(adamw.beta2)),
        epsilon=float(adamw.epsilon),
        weight_decay=float(adamw.weight_decay),
        warmup_steps=train.schedule.constant.warmup_steps,
        max_grad_norm=float(train.max_grad_norm),
        clip_low=float(grpo.clip_low),
        clip_high=float(grpo.clip_high),
        loss_type={"TokenMean": "dapo", "SequenceMean": "grpo"}[grpo.aggregation],
        scale_rewards={"Group": "group", "Batch": "batch", "None": "none"}[grpo.advantage_scale],
        evaluate_every=EVALUATE_EVERY,
        steps=train.max_steps or STEPS_MAX,
    )


def _rows(spec: RolloutRunSpec) -> tuple[list[Row], list[Row]]:
    train = spec.train
    assert train is not None
    source = build_source(train.data, build_environment(train.environment), seed=spec.seed)
    held_out = build_suite(spec.evaluations[0], train=train, seed=spec.seed).source()
    return list(source.rows(range(len(source)))), list(held_out.rows(range(len(held_out))))


def _write(path: Path, rows: list[Row]) -> str:
    kept = [{"prompt": row["prompt"], "answer": row["answer"]} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return str(path)


def write_race(race: Race, path: Path) -> str:
    """For the TRL process."""
    path.write_text(json.dumps(asdict(race)))
    return str(path)
