"""What makes two runs the same run: the digest at the root of the hash chain and of the ledger.

Covers what decides tokens and parameters. Leaves out what may change while a run goes on
(api.md, rules of form), where things lie, how many actors sample, and who watches; and every field that
is at its default, so that a field that a later version adds changes no run that does without it. A default
is therefore never changed: it is given by a preset with a version of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from blake3 import blake3

from rollout.data.batch_order import ORDER_FORMAT
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.run_status import Grade

IDENTITY_FORMAT = 2
"""Raised when an equal spec would get another identity. 1 held defaults, too."""
SPEC_FIELDS = ("model", "train", "infer", "evaluate", "seed", "numerics")
TRAIN_LIVE_FIELDS = ("maxSteps", "epochs", "heldOut")
INFER_LIVE_FIELDS = ("output", "logprobs", "maxFailedRatio")
"""What says how answers are written, not what they are."""
LOCATION_FIELDS = frozenset({"uri", "path", "fromRun", "revision", "digest"})
"""Where a model or data lies; its content is covered by its own digest."""


def spec_digest(
    spec: RolloutRunSpec,
    *,
    model_digest: str,
    data_digests: Mapping[str, str],
    dtype: str,
    further_digests: Mapping[str, str] | None = None,
    tool_digests: Mapping[str, str] | None = None,
    plugin_digests: Mapping[str, str] | None = None,
) -> str:
    """``blake3:<hex>`` of the identity of a run with this resolved spec."""
    identity = {
        **spec_identity(spec),
        "resolved": {
            "model": model_digest,
            "data": _data_identity(spec, data_digests),
            "dtype": dtype,
            **({"models": dict(further_digests)} if further_digests else {}),
            **({"tools": dict(tool_digests)} if tool_digests else {}),
            **({"order": ORDER_FORMAT} if spec.infer is not None else {}),
            **({"plugins": dict(plugin_digests)} if plugin_digests else {}),
        },
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"blake3:{blake3(text.encode()).hexdigest()}"


def spec_identity(spec: RolloutRunSpec) -> dict[str, Any]:
    """The part of a resolved spec that decides tokens and parameters, as plain data."""
    document = spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    kept: dict[str, Any] = {"format": IDENTITY_FORMAT}
    kept |= {name: document[name] for name in SPEC_FIELDS if name in document}
    kept["model"] = _without(kept["model"], LOCATION_FIELDS)
    if "train" in kept:
        train = _without(kept["train"], frozenset(TRAIN_LIVE_FIELDS))
        train["data"] = _without_locations(train.get("data"))
        if "reference" in train:
            train["reference"] = _without(train["reference"], LOCATION_FIELDS)
        if "environment" in train:
            train["environment"] = _as_before(train["environment"])
        train["rewards"] = [_without_folder(reward) for reward in train.get("rewards", ())]
        kept["train"] = train
    if "infer" in kept:
        infer = _without(kept["infer"], frozenset(INFER_LIVE_FIELDS))
        infer["data"] = _without_locations(infer.get("data"))
        kept["infer"] = infer
    if "evaluate" in kept:
        kept["evaluations"] = [_measured(one) for one in document.get("evaluations", ())]
    kept["engine"] = sorted(spec.actors.model_dump(mode="json", exclude_none=True)["engine"])
    kept["ranks"] = spec.learner.num_processes
    kept["strategy"] = spec.learner.strategy.chosen
    if spec.learner.sequence_parallel > 1:
        kept["sequenceParallel"] = spec.learner.sequence_parallel
    return kept


def _data_identity(spec: RolloutRunSpec, digests: Mapping[str, str]) -> Any:
    """What a run reads, by content: its rows, or those of each evaluation where there is nothing else."""
    return dict(digests) if spec.evaluate is not None else digests.get(spec.chosen)


def _measured(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation without its gate, which decides over what was measured, and without places."""
    kept = _without(evaluation, frozenset({"gate"}))
    suite = dict(kept["suite"])
    if "data" in suite:
        suite["data"] = _without_locations(suite["data"])
    if "rewards" in suite:
        suite["rewards"] = [_without_folder(reward) for reward in suite["rewards"]]
    return {**kept, "suite": suite}


def grade_of(spec: RolloutRunSpec) -> Grade:
    """What may be claimed about equality when nothing goes wrong."""
    stale = spec.train.max_staleness if spec.train else 0
    return "Exact" if spec.numerics.mode == "Exact" and not stale else "Logical"


def _without_folder(reward: Mapping[str, Any]) -> dict[str, Any]:
    """A reward whose file is named without the folder it lies in, and whose model without its place."""
    python = dict(reward.get("python") or {})
    if "path" in python:
        python["path"] = PurePath(python["path"]).name
    model = _without(reward.get("model") or {}, LOCATION_FIELDS)
    return {**reward, "python": python, **({"model": model} if "model" in reward else {})}


def _as_before(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment under the names that identities have had from the first: a renamed field changes no run."""
    python = dict(environment.get("python") or {})
    if "className" in python:
        python["class"] = python.pop("className")
    return {**environment, "python": python} if python else dict(environment)


def _without(document: Mapping[str, Any], fields: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in fields}


def _without_locations(data: Mapping[str, Any] | None) -> Any:
    if data is None:
        return None
    return {
        name: _without(value, LOCATION_FIELDS) if isinstance(value, dict) else value
        for name, value in data.items()
    }
