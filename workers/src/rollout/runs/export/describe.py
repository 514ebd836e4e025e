"""What a run's ledger and configuration say of a version: the lineage of an export, before a byte is written. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rollout.ledger.views import EvaluationView
from rollout.runs.export.choose import Chosen, algorithm_of, base_uri
from rollout.runs.export.lineage import Base, Form, Lineage, Measured
from rollout_api.v1alpha1.common import Dtype
from rollout_api.worker import WorkerConfig

LOGICAL = "Logical"


def describe_run(config: WorkerConfig, chosen: Chosen, *, form: Form, dtype: Dtype) -> Lineage:
    """The lineage without digests of what is to be written."""
    version, spec, resolved = chosen.version, config.spec, config.resolved
    return Lineage(
        run=config.run.name,
        uid=config.run.uid,
        spec_digest=config.spec_digest,
        algorithm=algorithm_of(config),
        step=version.step,
        lineage=version.lineage,
        chain=chosen.chain,
        grade=LOGICAL if version.lineage else resolved.grade,
        base=Base(uri=base_uri(config), digest=resolved.model_digest, revision=spec.model.revision),
        source=_source(config),
        data=dict(resolved.data_digests),
        evaluations=tuple(one for view in chosen.evaluations for one in _measured(view)),
        form=form,
        scores=spec.trains_scorer,
        dtype=dtype,
        num_parameters=0,
        version=version.digest,
        weights="",
        tensors={},
        files={},
    )


def _source(config: WorkerConfig) -> str:
    """What was trained on: the data's place, else the environment that makes its own."""
    assert config.spec.train is not None
    data, environment = config.spec.train.data, config.spec.train.environment
    if data is not None and data.jsonl is not None:
        return data.jsonl.uri
    if data is not None and data.hugging_face is not None:
        revision = data.hugging_face.revision
        return f"{data.hugging_face.path}{f' at {revision}' if revision else ''}"
    if data is not None and data.plugin is not None:
        return f"plugin {data.plugin.path}, {data.plugin.split}"
    if environment is not None and environment.builtin is not None:
        return f"environment {environment.builtin.name}"
    return "the author's own environment"


def _measured(view: EvaluationView) -> Iterator[Measured]:
    """Its metrics that are numbers."""
    for metric, found in (view.summary or {}).items():
        if not isinstance(found, Mapping) or "value" not in found:
            continue
        value, low, high = (
            float(found.get(key, found["value"])) for key in ("value", "low", "high")
        )
        if math.isfinite(value + low + high):
            yield Measured(
                name=view.name,
                split=view.split,
                metric=metric,
                value=value,
                low=low,
                high=high,
                num_prompts=view.num_prompts,
            )
