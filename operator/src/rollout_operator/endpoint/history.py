"""What an endpoint's revisions were made from, so that one can be gone back to. Pure, but for one read.

A revision's Deployment goes when another serves. What stays is a record: the spec that came to it, and which model that
was. People of the namespace may write it, so that it is believed no more than a spec of theirs: going back renders the
record anew, under the rules, the runtime and the operator of today.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rollout_api import GROUP, names
from rollout_api.base import ApiModel, Digest, Uri
from rollout_api.conditions import Reason
from rollout_operator.endpoint.inputs import KIND, Manifest, ServerInputs
from rollout_operator.endpoint.model import EndpointSeen
from rollout_operator.errors import NotFound
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.managed_fields import controller_uid
from rollout_operator.kube.resources import CONFIG_MAPS
from rollout_operator.run.plan.model import Blocked

LIVE = frozenset(
    {
        *("replicas", "scaling", "route", "suspend", "apiKeys", "tls"),
        *("promotion", "rollbackTo", "revisionHistoryLimit"),
    }
)
"""Fields that no record has: they are of the endpoint, not of what it served. Keys are those of now: one that was revoked stays so."""
RECORDS_BYTES_MAX = 512 * 1024
"""Of all records of an endpoint: a ConfigMap holds 1 MiB."""


class HandedOn(ApiModel):
    """The model of a run that a revision served: its object, and the digest of that."""

    uri: Uri
    digest: Digest
    words: str = Field(default="", max_length=500)


class RevisionRecord(ApiModel):
    """One revision. ``handed_on`` None: the spec says by itself which model it is."""

    spec: dict[str, Any]
    handed_on: HandedOn | None = None


async def read_history(client: KubeClient, namespace: str, name: str, uid: str) -> dict[str, str]:
    """The records of an endpoint by revision, unread; nothing where there are none of its own. Raises KubeError."""
    try:
        live = await client.get(CONFIG_MAPS, namespace, names.history_name(name))
    except NotFound:
        return {}
    own = controller_uid(live["metadata"], GROUP, KIND) == uid
    return dict(live.get("data") or {}) if own else {}


def needs_record(seen: EndpointSeen) -> bool:
    """Whether the target is not on record yet: it has no servers, or somebody took the records away."""
    place = ("ConfigMap", names.history_name(seen.name))
    return seen.target not in seen.servers or place not in seen.children


def build_history(inputs: ServerInputs, revision: str, seen: EndpointSeen) -> Manifest:
    """The records of the revisions that are kept, with that of ``revision``; the newest as far as there is room."""
    records = {revision: _record(inputs)}
    size = len(records[revision])
    for name in [one.name for one in seen.status.revisions][: inputs.spec.revision_history_limit]:
        text = seen.history.get(name)
        if text is None or name == revision or size + len(text) > RECORDS_BYTES_MAX:
            continue
        records[name], size = text, size + len(text)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": inputs.meta(names.history_name(inputs.name)),
        "data": dict(sorted(records.items())),
    }


def _record(inputs: ServerInputs) -> str:
    spec = inputs.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    model, handed_on = inputs.model, None
    if inputs.spec.model.from_run is not None and model.live is None:
        handed_on = HandedOn(uri=model.uri, digest=model.digest, words=model.words)
    made_from = {name: value for name, value in spec.items() if name not in LIVE}
    record = RevisionRecord(spec=made_from, handed_on=handed_on)
    return record.model_dump_json(by_alias=True, exclude_none=True)


def go_back(
    document: Mapping[str, Any], history: Mapping[str, str]
) -> tuple[dict[str, Any], HandedOn | None] | Blocked:
    """The spec of the revision that ``document`` goes back to, with what is of the endpoint, and the model that it served."""
    name = str(document.get("rollbackTo"))
    if name not in history:
        known = ", ".join(sorted(history)) or "none"
        message = f"spec.rollbackTo: there is no record of revision {name!r:.120}; there are: {known:.500}"
        return Blocked(reason=Reason.REFERENCE_NOT_FOUND, message=message)
    try:
        record = RevisionRecord.model_validate(json.loads(history[name]))
    except (ValueError, RecursionError) as error:
        message = (
            f"spec.rollbackTo: the record of revision {name} in ConfigMap "
            f"{names.history_name('NAME')} cannot be read: {error!s:.500}; take rollbackTo out"
        )
        return Blocked(reason=Reason.INVALID_SPEC, message=message)
    own = {key: value for key, value in document.items() if key in LIVE}
    made_from = {key: value for key, value in record.spec.items() if key not in LIVE}
    return {**made_from, **own}, record.handed_on
