"""The weights that a run has saved last, for an endpoint that follows it while it is at work. Reads; decides nothing else.

Where they lie is in the run's status, which the run's own pods write: only an object of that run's own place is taken. Servers are
given no way to the coordinator and no token of the run: they read the bucket, by digest, as they read a model that was handed on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rollout_api.checks.inference.endpoint import find_unservable
from rollout_api.conditions import Reason
from rollout_api.serving import LiveVersion
from rollout_api.v1alpha1.inference.endpoint import EndpointModel
from rollout_operator.cache.objects import Stored
from rollout_operator.cache.store import Store
from rollout_operator.controller.queue import Key
from rollout_operator.endpoint.model import ServedLive, ServedModel
from rollout_operator.run.index.references import RUN
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.preconditions.checks import describe
from rollout_operator.run.plan.preconditions.upstreams import Readable

AGAIN_SECONDS = 10.0
_OBJECT = re.compile(r"(?P<place>.+)/blake3/[0-9a-f]{2}/(?P<name>[0-9a-f]{64})")
SHOWN_MAX = 200


def find_live(store: Store, key: Key, run: str, readable: Readable) -> ServedModel | Blocked:
    """The model that the run began with and the weights that it has saved last, or what keeps them from being known."""
    found = store.find(Key(namespace=key.namespace, name=run, kind=RUN))
    if found is None or found.deleting:
        message = f"fromRun {run}: there is no such run in this namespace"
        return _blocked(Reason.REFERENCE_NOT_FOUND, message)
    if found.excess:
        return _blocked(Reason.INVALID_SPEC, f"fromRun {run}: {found.excess}")
    base = _find_base(run, json.loads(found.spec).get("model") or {})
    if isinstance(base, Blocked):
        return base
    status = found.read_status()
    saved = status.get("lastSnapshot") or {}
    if not saved:
        return _nothing(run, found)
    live = _read_saved(found, saved, readable)
    if isinstance(live, Blocked):
        return live
    place, version = live
    return ServedModel(
        uri=base.uri or "",
        revision=base.revision,
        words=f"Live of run {run}",
        live=ServedLive(
            run=run,
            place=place,
            version=version,
            chat_template=(json.loads(found.spec).get("model") or {}).get("chatTemplate"),
            halts=_halts(run, status),
        ),
    )


def _find_base(run: str, model: Mapping[str, Any]) -> EndpointModel | Blocked:
    """The model that has configuration and tokenizer; every server finds it by itself."""
    uri, revision = model.get("uri"), model.get("revision")
    if not uri:
        message = (
            f"run {run} began with what another run has handed on, of which servers take no configuration and tokenizer: "
            "serve Latest or Best of it"
        )
        return _blocked(Reason.NOT_SUPPORTED, message)
    base = EndpointModel(uri=uri, revision=revision)
    problems = list(find_unservable(base))
    words = f"run {run} began with a model that servers cannot find: {describe(problems)}"
    return _blocked(Reason.NOT_SUPPORTED, words) if problems else base


def _nothing(run: str, found: Stored) -> Blocked:
    if found.facts.finished:
        return _blocked(
            Reason.REFERENCE_NOT_FOUND, f"run {run} has ended, and has saved no weights"
        )
    message = f"waits for the first snapshot of run {run} (its spec.snapshots.everySteps)"
    return _blocked(Reason.WAITING_FOR_RUN, message, stalled=False)


def _read_saved(
    found: Stored, saved: Mapping[str, Any], readable: Readable
) -> tuple[str, LiveVersion] | Blocked:
    """The run's place and what it has saved there last."""
    run, uri = found.key.name, str(saved.get("weightsURI") or "")
    if not uri:
        message = (
            f"run {run} saves no weights that servers can take: it keeps objects on its volume, trains an adapter or a reward "
            "model, or was begun by an earlier release; keep objects in a bucket (storage.uri), or serve Latest"
        )
        return _blocked(Reason.NOT_SUPPORTED, message)
    named = _OBJECT.fullmatch(uri)
    if named is None or not readable.holds(uri, found.uid):
        message = (
            f"fromRun {run}: its status names weights at {uri[:SHOWN_MAX]!r}, expected an object below "
            f"<storage.uri>/<namespace>/{found.uid}/ of this endpoint's runtime"
        )
        return _blocked(Reason.NOT_ALLOWED, message)
    try:
        version = LiveVersion(
            run=found.uid,
            step=saved.get("step", -1),
            object=f"blake3:{named['name']}",
            digest=saved.get("weightsDigest", ""),
        )
    except ValidationError:
        message = f"run {run}: its status names no step and digest of the weights at {uri}"
        return _blocked(Reason.REFERENCE_NOT_FOUND, message)
    return named["place"], version


def _halts(run: str, status: Mapping[str, Any]) -> tuple[Reason, str] | None:
    """Why a run saves nothing at present; None: it is at work."""
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    for kind, halts in (("Finished", "True"), ("Suspended", "True"), ("Ready", "False")):
        one = conditions.get(kind, {})
        if one.get("status") == halts and one.get("reason") in set(Reason):
            return Reason(one["reason"]), f"run {run}: {one.get('message', '')[:SHOWN_MAX]}"
    return None


def _blocked(reason: Reason, message: str, *, stalled: bool = True) -> Blocked:
    return Blocked(reason=reason, message=message, stalled=stalled, retry_seconds=AGAIN_SECONDS)
