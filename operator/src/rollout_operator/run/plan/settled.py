"""The settings that pods of a run are made from, as one digest: an attempt of others is not gone on with. Pure."""

from __future__ import annotations

from functools import cache

from rollout_api.base import ApiModel
from rollout_api.v1alpha1.pods.roles import Actors
from rollout_api.v1alpha1.run import LIVE_ACTORS, LIVE_SPEC, LIVE_TRAIN, RolloutRunSpec
from rollout_api.v1alpha1.training.train import Train
from rollout_operator.kube.managed_fields import digest_of

SEPARATOR = "-"


def settled_digest(spec: RolloutRunSpec) -> str:
    """Digest of all but live settings, behind that of the schema, whose defaults are among them."""
    kept = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=_LIVE)
    return f"{_schema_digest()}{SEPARATOR}{digest_of(kept)}"


def differ(one: str, other: str) -> bool:
    """Whether two digests are of different settings. Those of two schemas say nothing of it, nor does an empty one."""
    comparable = one.partition(SEPARATOR)[0] == other.partition(SEPARATOR)[0]
    return comparable and one != other


@cache
def _schema_digest() -> str:
    return digest_of(RolloutRunSpec.model_json_schema())


def _fields(model: type[ApiModel], names: frozenset[str]) -> set[str]:
    """Python's names of fields that are given as the API has them."""
    return {name for name, field in model.model_fields.items() if field.alias in names}


_LIVE = {
    **dict.fromkeys(_fields(RolloutRunSpec, LIVE_SPEC), True),
    "train": _fields(Train, LIVE_TRAIN),
    "actors": _fields(Actors, LIVE_ACTORS),
}
