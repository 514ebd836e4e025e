"""The model that an endpoint serves: named by its spec, handed on by a run of its namespace, or in a snapshot there. Reads; decides nothing else.

A run's status says where its model lies, and a run's own pods write it: only an object of that run's own place is taken,
and its name is the digest that pods hold its bytes against.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from rollout_api.checks.inference.endpoint import follows
from rollout_api.conditions import Reason
from rollout_api.v1alpha1.inference.endpoint import EndpointModel
from rollout_api.v1alpha1.pods.allowed import Allowed
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.cache.store import Store
from rollout_operator.controller.queue import Key
from rollout_operator.endpoint.history import HandedOn
from rollout_operator.endpoint.model import ServedModel, ServedSnapshot
from rollout_operator.endpoint.sources.live import find_live
from rollout_operator.run.index.references import SNAPSHOT
from rollout_operator.run.index.upstreams import find_upstreams
from rollout_operator.run.plan.model import Blocked
from rollout_operator.run.plan.preconditions.restoring import (
    check_restore,
    find_source,
    foreign_signers,
)
from rollout_operator.run.plan.preconditions.upstreams import (
    Readable,
    Upstream,
    check_upstreams,
    keep_own,
)

_OBJECT = re.compile(r"/blake3/[0-9a-f]{2}/(?P<name>[0-9a-f]{64})$")


def find_model(
    store: Store,
    key: Key,
    model: EndpointModel,
    runtime: RuntimeSpec,
    signers: Collection[str] = (),
) -> ServedModel | Blocked:
    """What servers are told to serve now, or what keeps it from being known; ``key`` is the endpoint's.

    ``signers``: whose snapshots this installation believes.
    """
    if model.snapshot_ref is not None:
        return _find_snapshot(store, key, model, runtime, signers)
    if model.from_run is None:
        assert model.uri is not None, "rules of endpoints refuse other models"
        return ServedModel(uri=model.uri, revision=model.revision)
    reference = {"fromRun": model.from_run.model_dump(mode="json")}
    if follows(model):
        return find_live(store, key, model.from_run.name, _readable(key.namespace, runtime))
    [found] = keep_own(find_upstreams(store, key, reference), _readable(key.namespace, runtime))
    return check_upstreams([found]) or _of_bucket(found)


def recall_model(found: HandedOn, namespace: str, runtime: RuntimeSpec) -> ServedModel | Blocked:
    """The model that a revision served which is gone back to: the run that has handed it on may be another by now, or gone."""
    named = _OBJECT.search(found.uri)
    own = named is not None and found.digest == f"blake3:{named['name']}"
    if not own or not _readable(namespace, runtime).allows(found.uri):
        message = (
            f"spec.rollbackTo: the record names {found.uri[:200]!r} as the model, which is no object of this "
            "namespace's place in the runtime's bucket; take rollbackTo out"
        )
        return Blocked(reason=Reason.NOT_ALLOWED, message=message)
    return ServedModel(uri=found.uri, digest=found.digest, words=found.words)


def _find_snapshot(
    store: Store, key: Key, model: EndpointModel, runtime: RuntimeSpec, signers: Collection[str]
) -> ServedModel | Blocked:
    assert model.snapshot_ref is not None and model.base_uri is not None
    name = model.snapshot_ref.name
    stored = store.find(Key(namespace=key.namespace, name=name, kind=SNAPSHOT))
    found = find_source(
        name,
        None if stored is None else stored.read_status(),
        _readable(key.namespace, runtime),
        deleting=stored is not None and stored.deleting,
    )
    if (gate := check_restore(found)) is not None:
        return gate
    snapshot = ServedSnapshot(
        id=found.id,
        place=found.place,
        trusted=(*signers, *runtime.trusted_signers),
        foreign=foreign_signers(runtime, signers),
    )
    return ServedModel(
        uri=model.base_uri,
        revision=model.revision,
        snapshot=snapshot,
        digest=f"blake3:{found.id}",
        words=f"snapshot {name} over {model.base_uri}",
    )


def _readable(namespace: str, runtime: RuntimeSpec) -> Readable:
    own = runtime.storage.uri if runtime.storage is not None else None
    return Readable(
        namespace=namespace,
        roots=(own,) if own is not None else (),
        lists=runtime.allowed or Allowed(),
    )


def _of_bucket(found: Upstream) -> ServedModel | Blocked:
    if found.claim:
        message = (
            f"run {found.name} keeps its objects on its volume, which no server mounts: keep them in a bucket"
            " (storage.uri) in the run that is served"
        )
        return Blocked(reason=Reason.NOT_SUPPORTED, message=message)
    assert found.uri is not None
    named = _OBJECT.search(found.uri)
    if named is None:
        message = f"run {found.name}: its status names no object by digest as its model {found.snapshot!r}"
        return Blocked(reason=Reason.REFERENCE_NOT_FOUND, message=message)
    return ServedModel(
        uri=found.uri,
        digest=f"blake3:{named['name']}",
        words=f"{found.snapshot} of run {found.name}",
    )
