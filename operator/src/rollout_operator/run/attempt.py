"""The record of a run attempt: everything that was rendered for it, in one immutable ConfigMap.

An operator that finds a record applies what it holds and renders nothing: an upgrade, an edited
runtime or an edited spec changes no live pod. The ConfigMap is named by what pods are made from: one
that was deleted is put back where it bears the same name again, whatever live settings have become.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollout_api import names
from rollout_api.fields.live import LIVE_FIELDS
from rollout_api.worker import WorkerOrder
from rollout_operator.errors import RecordFormatUnknown, RecordUnverified
from rollout_operator.kube.managed_fields import digest_of, seal
from rollout_operator.run.permitted import Allowances, build_allowances, parse_allowances
from rollout_operator.run.render import contract
from rollout_operator.run.render.inputs import Inputs, Manifest
from rollout_operator.run.render.order import build_order
from rollout_operator.run.render.sandboxes import build_sandbox_children
from rollout_operator.run.render.security import (
    build_account,
    build_disruption_budget,
    build_network_policy,
    build_pod_monitor,
    build_role_binding,
)
from rollout_operator.run.render.workloads import build_roles, build_service, build_stateful_set
from rollout_operator.signing import (
    ALLOWANCES_FILE,
    CHILDREN_FILE,
    RECORD_FORMAT,
    Keyring,
    record_content,
    record_format,
)

PACK_LEVEL = 3
CHILDREN_BYTES_MAX = 8 << 20
"""Most that the children of a record may unpack to; those of the largest runs are a twentieth of it."""
_GZIP = 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A rendered run attempt: its ConfigMap, and its children without live fields."""

    attempt: int
    config_map: Manifest
    children: tuple[Manifest, ...]
    allowances: Allowances

    @property
    def name(self) -> str:
        """Name of the ConfigMap."""
        return self.config_map["metadata"]["name"]

    def child(self, kind: str, name: str) -> Manifest | None:
        """One recorded child."""
        for manifest in self.children:
            if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name):
                return manifest
        return None


def render_record(inputs: Inputs) -> Record:
    """Render a run attempt, once."""
    order, allowances = build_order(inputs), build_allowances(inputs.runtime)
    name = names.configuration_name(inputs.name, digest_of(_identity(inputs, order, allowances)))
    children = build_children(inputs, name)
    text = json.dumps(children, sort_keys=True)
    packed = gzip.compress(text.encode(), PACK_LEVEL, mtime=0)
    meta = inputs.meta(name)
    meta["annotations"][names.ANNOTATION_FORMAT] = RECORD_FORMAT
    meta["annotations"][names.ANNOTATION_GENERATION] = str(inputs.generation)
    meta["annotations"][names.ANNOTATION_SETTLED] = inputs.settled
    meta["annotations"][names.ANNOTATION_CHILDREN] = ",".join(
        f"{child['kind']}/{child['metadata']['name']}" for child in children
    )
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta,
        "immutable": True,
        "data": {
            contract.ORDER_FILE: order.model_dump_json(exclude_none=True, indent=1),
            ALLOWANCES_FILE: json.dumps(allowances.document(), sort_keys=True),
        },
        "binaryData": {CHILDREN_FILE: base64.b64encode(packed).decode()},
    }
    return Record(
        attempt=inputs.attempt,
        config_map=seal(manifest),
        children=tuple(children),
        allowances=allowances,
    )


def _identity(inputs: Inputs, order: WorkerOrder, allowances: Allowances) -> list[Any]:
    """What pods are made from, under whatever name."""
    settled = order.model_dump(mode="json", exclude_none=True, exclude=_TOLD_LATER)
    return [settled, build_children(inputs, ""), allowances.document()]


_TOLD_LATER: Any = {"generation": True, "progress": {"every_seconds"}, "spec": LIVE_FIELDS}
"""What of an order a living coordinator is told of when it changes."""


def sign_record(record: Record, keyring: Keyring) -> Record:
    """The record with the proof that we made it."""
    manifest = record.config_map
    signature = keyring.sign(record_content(manifest))
    meta = manifest["metadata"]
    annotations = {**meta["annotations"], names.ANNOTATION_SIGNATURE: signature}
    signed = seal({**manifest, "metadata": {**meta, "annotations": annotations}})
    return replace(record, config_map=signed)


def read_record(live: Mapping[str, Any], keyring: Keyring) -> Record:
    """The record in a ConfigMap that was found.

    Raises RecordUnverified when we have not made it, RecordFormatUnknown when another release of ours has.
    """
    meta = live["metadata"]
    annotations = meta.get("annotations") or {}
    signature = annotations.get(names.ANNOTATION_SIGNATURE, "")
    if not keyring.verify(record_content(live), signature):
        raise RecordUnverified(meta["name"])
    if (found := record_format(annotations)) != RECORD_FORMAT:
        raise RecordFormatUnknown(meta["name"], found, RECORD_FORMAT)
    try:
        children = tuple(json.loads(unpack(base64.b64decode(live["binaryData"][CHILDREN_FILE]))))
        attempt = int(meta["labels"][names.LABEL_ATTEMPT])
        allowances = parse_allowances(json.loads(live["data"][ALLOWANCES_FILE]))
    except (KeyError, TypeError, zlib.error, ValueError, RecursionError) as error:
        message = f"ConfigMap {meta['name']} is no record of a run attempt: {error}"
        raise ValueError(message) from error
    return Record(attempt=attempt, config_map=dict(live), children=children, allowances=allowances)


def unpack(packed: bytes) -> bytes:
    """What was packed; the bound holds while it comes out. Raises ValueError past it, zlib.error for no gzip."""
    stream = zlib.decompressobj(wbits=_GZIP)
    text = stream.decompress(packed, CHILDREN_BYTES_MAX)
    if stream.unconsumed_tail or not stream.eof:
        raise ValueError(
            f"expected children of at most {CHILDREN_BYTES_MAX} bytes, and all of them"
        )
    return text


def build_children(inputs: Inputs, configuration: str) -> list[Manifest]:
    """Every child but the ConfigMaps and the Secret, in the order in which they are made."""
    roles = build_roles(inputs)
    children: list[Manifest] = []
    for role in roles:
        account = build_account(inputs, role)
        children += [account] if account is not None else []
    children.append(build_role_binding(inputs))
    children += build_sandbox_children(inputs)
    children += [build_service(inputs, role) for role in roles]
    children += [build_network_policy(inputs, role) for role in roles]
    children += [build_disruption_budget(inputs, role) for role in roles if role != "coordinator"]
    if inputs.platform.pod_monitors and inputs.spec.serve is None:
        children.append(build_pod_monitor(inputs))
    children += [build_stateful_set(inputs, role, configuration) for role in roles]
    return children


def build_keys(meta: Manifest, jwks: str, secret: str, secret_uid: str) -> Manifest:
    """The cluster's public keys, for the coordinator; replaced when the cluster's keys change.

    The run's Secret is its second owner: the garbage collector takes that reference away when the Secret
    is deleted, which is how the operator learns of it without a right to watch Secrets.
    """
    owner = {"apiVersion": "v1", "kind": "Secret", "name": secret, "uid": secret_uid}
    return seal(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**meta, "ownerReferences": [*meta["ownerReferences"], owner]},
            "data": {contract.KEYS_FILE: jwks},
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleState:
    """What of a StatefulSet changes while an attempt lives."""

    replicas: int
    incarnation: int = 0
    first: int = 1
    disruptions: int = 0
    gang_tries: int = 0
    hold_until: str = ""


def with_live(manifest: Manifest, live: ScaleState) -> Manifest:
    """A recorded StatefulSet with its live fields, sealed."""
    spec, meta = manifest["spec"], manifest["metadata"]
    template = spec["template"]
    labels = dict(template["metadata"]["labels"])
    if names.LABEL_INCARNATION in labels:
        labels[names.LABEL_INCARNATION] = str(max(1, live.incarnation))
    marks = {
        names.ANNOTATION_FIRST_INCARNATION: str(live.first if live.first > 1 else ""),
        names.ANNOTATION_DISRUPTIONS: str(live.disruptions or ""),
        names.ANNOTATION_GANG_TRIES: str(live.gang_tries or ""),
        names.ANNOTATION_HOLD_UNTIL: live.hold_until,
    }
    annotations = {**meta["annotations"], **{key: text for key, text in marks.items() if text}}
    inner = {**template, "metadata": {**template["metadata"], "labels": labels}}
    return seal(
        {
            **manifest,
            "metadata": {**meta, "annotations": annotations},
            "spec": {**spec, "replicas": live.replicas, "template": inner},
        }
    )
