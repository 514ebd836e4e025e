"""What a plan cannot know yet, field by field: results of other runs, a cluster, a network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rollout.models.fetched import is_fetched
from rollout.models.roles import further_models
from rollout.runs.fetching.sources import find_far
from rollout_api.v1alpha1.common import Builtin
from rollout_api.v1alpha1.data import Data
from rollout_api.v1alpha1.run import RolloutRunSpec

HUB_SUITES = frozenset(
    {
        "gsm8k",
        "gsm8k-5shot",
        "gsm8k-cot-zeroshot",
        "ifeval",
        "mmlu",
        "mmlu-continuation",
        "mmlu-generative",
    }
)
"""Builtin suites whose questions come from the hub unless a ``uri`` is given."""
NOT_LOOKED_UP = "not looked up: --offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """Something that could not be looked up now, and why."""

    field: str
    value: str
    reason: str


def find_pending(spec: RolloutRunSpec) -> list[Unresolved]:
    """What only another run, or a cluster, can tell."""
    pending = []
    if spec.model.from_run:
        source = spec.model.from_run
        reason = f"produced by the run {source.name!r} when it has finished"
        pending.append(Unresolved(field="spec.model", value=source.snapshot, reason=reason))
    for model in further_models(spec):
        if (source := model.source.from_run) is not None:
            reason = f"produced by the run {source.name!r} when it has finished"
            pending.append(Unresolved(field=model.field, value=source.snapshot, reason=reason))
    if spec.code and spec.code.config_map:
        name = spec.code.config_map.name
        pending.append(
            Unresolved(field="spec.code", value=name, reason="a ConfigMap of the cluster")
        )
    return pending


def find_remote(spec: RolloutRunSpec) -> list[Unresolved]:
    """Data and storage that only a network can reach."""
    found = {field: source.uri or "" for field, source in find_far(spec).items()}
    if spec.storage and spec.storage.uri and is_fetched(spec.storage.uri):
        found["spec.storage.uri"] = spec.storage.uri
    return [
        Unresolved(field=field, value=value, reason=NOT_LOOKED_UP) for field, value in found.items()
    ]


def find_hub_model(spec: RolloutRunSpec) -> list[Unresolved]:
    """The model and the further ones, where they lie on the hub."""
    uris = {"spec.model.uri": spec.model.uri or ""}
    uris |= {f"{one.field}.uri": one.source.uri or "" for one in further_models(spec)}
    return [
        Unresolved(field=field, value=uri, reason=NOT_LOOKED_UP)
        for field, uri in uris.items()
        if urlsplit(uri).scheme == "hf"
    ]


def find_hub_data(spec: RolloutRunSpec) -> list[Unresolved]:
    """Data of the hub, for training and for evaluations; a folder of this machine is not."""
    found = list(_hub_sets("spec.train.data", spec.train.data if spec.train else None))
    found += _hub_sets("spec.infer.data", spec.infer.data if spec.infer else None)
    for index, evaluation in enumerate(spec.evaluations):
        field = f"spec.evaluations[{index}].suite"
        found += _hub_sets(f"{field}.data", evaluation.suite.data)
        found += _hub_suites(f"{field}.builtin", evaluation.suite.builtin)
    return found


def _hub_sets(field: str, data: Data | None) -> Iterator[Unresolved]:
    if data and data.hugging_face and not Path(data.hugging_face.path).exists():
        path = data.hugging_face.path
        yield Unresolved(field=f"{field}.huggingFace.path", value=path, reason=NOT_LOOKED_UP)
    if data and data.jsonl and data.jsonl.uri.startswith("hf://"):
        yield Unresolved(field=f"{field}.jsonl.uri", value=data.jsonl.uri, reason=NOT_LOOKED_UP)


def _hub_suites(field: str, builtin: Builtin | None) -> Iterator[Unresolved]:
    if builtin is None or builtin.name not in HUB_SUITES:
        return
    if not any(one.name == "uri" for one in builtin.parameters):
        yield Unresolved(field=field, value=builtin.name, reason=NOT_LOOKED_UP)
