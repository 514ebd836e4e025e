"""The settings that pods of a run are made from, as one digest: an attempt of others is not gone on with. Pure."""

from __future__ import annotations

from functools import cache

from rollout_api.fields.live import LIVE_FIELDS
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_operator.kube.managed_fields import digest_of

SEPARATOR = "-"


def settled_digest(spec: RolloutRunSpec) -> str:
    """Digest of all but live settings, behind that of the schema, whose defaults are among them."""
    kept = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=LIVE_FIELDS)
    return f"{_schema_digest()}{SEPARATOR}{digest_of(kept)}"


def differ(one: str, other: str) -> bool:
    """Whether two digests are of different settings. Those of two schemas say nothing of it, nor does an empty one."""
    comparable = one.partition(SEPARATOR)[0] == other.partition(SEPARATOR)[0]
    return comparable and one != other


@cache
def _schema_digest() -> str:
    return digest_of(RolloutRunSpec.model_json_schema())
