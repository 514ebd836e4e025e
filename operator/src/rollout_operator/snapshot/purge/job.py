"""The errand that purges one snapshot: what its pod is told, and what it sees of a ledger that is kept."""

from __future__ import annotations

from dataclasses import dataclass

from rollout_api import names
from rollout_api.places import namespace_place
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_api.v1alpha1.storage import Storage
from rollout_api.worker import PurgeOrder, RunIdentity
from rollout_operator.run.render import contract
from rollout_operator.run.render.inputs import Manifest, Platform
from rollout_operator.run.render.layers import field_variable, secret_variable
from rollout_operator.run.render.volumes import Mount, claim_name
from rollout_operator.snapshot.errand import Errand, as_text
from rollout_operator.snapshot.purge.plan import PURGE_SECONDS, LedgerState

_JOB_LABEL = "metadata.labels['batch.kubernetes.io/controller-uid']"


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeInputs:
    """Everything that rendering takes. ``storage`` is the run's, as its spec had it."""

    name: str
    namespace: str
    uid: str
    run_name: str
    run_uid: str
    ledger: LedgerState
    storage: Storage
    runtime: RuntimeSpec
    platform: Platform

    @property
    def claim(self) -> str | None:
        """The volume of a ledger that is kept in a file."""
        kept = self.ledger == "Kept" and not in_postgres(self.storage)
        return claim_name(self.run_name, self.run_uid) if kept else None


def in_postgres(storage: Storage) -> bool:
    """Whether records lie in a database."""
    return storage.ledger is not None and storage.ledger.postgres is not None


def build_purge(inputs: PurgeInputs) -> Errand:
    """The errand."""
    return Errand(
        kind="purge",
        job=names.purge_name(inputs.uid),
        name=inputs.name,
        namespace=inputs.namespace,
        uid=inputs.uid,
        runtime=inputs.runtime,
        platform=inputs.platform,
        command=contract.PURGE_COMMAND,
        seconds=int(PURGE_SECONDS),
        env=_env(inputs),
        mounts=_mounts(inputs),
    )


def build_purge_order(inputs: PurgeInputs) -> PurgeOrder:
    """What the pod is told."""
    uri = inputs.storage.uri
    assert uri is not None
    assert inputs.ledger != "Draining"
    place = {"uri": namespace_place(uri, inputs.namespace)}
    path = f"{contract.RUN_FOLDER}/ledger.db" if inputs.claim is not None else None
    return PurgeOrder(
        snapshot=inputs.uid,
        run=RunIdentity(name=inputs.run_name, namespace=inputs.namespace, uid=inputs.run_uid),
        storage=inputs.storage.model_copy(update=place),
        ledger=inputs.ledger,
        ledger_path=path,
    )


def _env(inputs: PurgeInputs) -> list[Manifest]:
    order = build_purge_order(inputs).model_dump_json(by_alias=True, exclude_none=True)
    found = [
        field_variable(contract.PURGE_WORK, _JOB_LABEL),
        {"name": contract.PURGE_ORDER, "value": as_text(order)},
    ]
    if inputs.ledger == "Kept" and in_postgres(inputs.storage):
        ledger = inputs.storage.ledger
        assert ledger is not None
        assert ledger.postgres is not None
        secret = ledger.postgres.secret_ref
        found.append(secret_variable(contract.DSN_VARIABLE, secret.name, secret.key))
    return found


def _mounts(inputs: PurgeInputs) -> list[Mount]:
    if inputs.claim is None:
        return []
    source = {"persistentVolumeClaim": {"claimName": inputs.claim}}
    return [Mount(name="ledger", path=contract.RUN_FOLDER, source=source)]
