"""Whether the ledger's volume can be had, and for one pod alone. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rollout_api.conditions import Reason
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_operator.run.plan.model import Blocked

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """A StorageClass."""

    name: str
    provisioner: str
    default: bool


def check_storage(spec: RolloutRunSpec, classes: tuple[Class, ...] | None) -> Blocked | None:
    """A volume for the ledger needs a StorageClass; ``classes`` None is not known."""
    if classes is None or not needs_volume(spec):
        return None
    wanted = wanted_class(spec)
    if wanted is None and not any(one.default for one in classes):
        message = "the ledger needs a volume, and the cluster has no default StorageClass"
        return Blocked(reason=Reason.NO_STORAGE_CLASS, message=message, retry_seconds=5)
    if wanted is not None and all(one.name != wanted for one in classes):
        message = f"the ledger's StorageClass {wanted!r} does not exist"
        return Blocked(reason=Reason.NO_STORAGE_CLASS, message=message, retry_seconds=5)
    return None


def needs_volume(spec: RolloutRunSpec) -> bool:
    """Whether the ledger is a file."""
    storage = spec.storage
    return storage is None or storage.ledger is None or storage.ledger.postgres is None


def wanted_class(spec: RolloutRunSpec) -> str | None:
    """The StorageClass that is named."""
    storage = spec.storage
    ledger = storage.ledger if storage is not None else None
    return ledger.sqlite.storage_class_name if ledger and ledger.sqlite else None


def access_mode(
    spec: RolloutRunSpec, classes: tuple[Class, ...] | None, drivers: frozenset[str]
) -> str:
    """One pod only where the volume's driver can promise it (CSI), else one node."""
    wanted = wanted_class(spec)
    for one in classes or ():
        if one.name == wanted or (wanted is None and one.default):
            return "ReadWriteOncePod" if one.provisioner in drivers else "ReadWriteOnce"
    return "ReadWriteOnce"
