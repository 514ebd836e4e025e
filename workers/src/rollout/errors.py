"""The error tree of the data plane, named by the boundary that was crossed.

RolloutError
 ├─ SpecError        the manifest, or something it names, is wrong          exit code 2
 │   ├─ ModelNotFound  a model that it names cannot be had
 │   ├─ SnapshotRefused  a snapshot that it names is unknown, or not to be trusted
 │   └─ NoAnchorYet    a run has saved nothing yet that a snapshot could be of
 ├─ LedgerError      the ledger refused, is corrupt, or belongs to another run
 ├─ StoreError       an object is missing, corrupt, or could not be written
 ├─ EngineError      the generation engine failed (infrastructure, never reward)
 ├─ HubUnreachable   a hub that has the model or the data does not answer     exit code 4
 ├─ InfrastructureError  what one sample needed failed: for environments to raise
 ├─ RewardError      a reward raised, hung, or returned something that is not a finite number
 ├─ PluginError      a plugin broke its contract, or failed at a task
 ├─ DataError        a data set has broken records                          exit code 2
 │   └─ DataNotFound   a data set cannot be had
 ├─ CoordinatorError the coordinator refused or could not be reached
 ├─ HostError        a machine that a run is sent to refused, or lacks something  exit code 4
 │   ├─ HostUnreachable  it does not answer
 │   └─ ConnectionLost   it did, and no longer does
 ├─ KubeError        the API server refused, or does not answer             exit code 4
 │   └─ ObjectNotFound   an object that was named is not there              exit code 2
 └─ RunFailed        the run itself ended badly                              exit code 1

A message says what was expected, what was met, which object, and what to do.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class RolloutError(Exception):
    """Base of every error this package raises on purpose. ``exit_code`` is what the CLI exits with."""

    exit_code = 1


class SpecError(RolloutError):
    """The manifest, or something it names, is wrong."""

    exit_code = 2


class ModelNotFound(SpecError):  # noqa: N818 - the reason shown in status
    """A model that the manifest names, or its revision, cannot be had."""


class SnapshotRefused(SpecError):  # noqa: N818 - a state
    """A snapshot that is not to be used: unknown, unsigned, of a signer that is not trusted, or of another kind of run."""


class DumpCutOff(SnapshotRefused):
    """Who made the image of a program was ended in the middle of it: the program may be left stopped, or cut off from its peers."""


class NoAnchorYet(SpecError):  # noqa: N818 - a state
    """A run that has saved no anchor yet: there is nothing to take a snapshot of, so far."""


class DataError(RolloutError):
    """A data set holds broken records, or is missing."""

    exit_code = 2


class DataNotFound(DataError):  # noqa: N818 - the reason shown in status
    """A data set cannot be had, or is not the one that was planned with."""


class HubUnreachable(RolloutError):  # noqa: N818 - a state
    """A hub that may have what the manifest names does not answer: the next try may succeed."""

    exit_code = 4


class LedgerError(RolloutError):
    """The ledger refused a write, is corrupt, or belongs to another run."""


class LedgerBelongsToAnotherRun(LedgerError):  # noqa: N818 - the reason shown in status
    """The ledger's first row names another run's UID or another spec digest."""


class LedgerRewound(LedgerError):  # noqa: N818 - the reason shown in status
    """A restarted ledger knows less than it had acknowledged: committed writes are gone."""


class LedgerFull(LedgerError):  # noqa: N818 - the reason shown in status
    """The disk under the ledger is full; nothing committed is lost."""


class LedgerBroken(LedgerError):  # noqa: N818 - the reason shown in status
    """The ledger's file is damaged, or the disk under it fails."""


class NoLongerKept(LedgerError):  # noqa: N818 - a state
    """Bodies that are asked for were removed, as the run's retention says."""


class LedgerUnreachable(LedgerError):  # noqa: N818 - the reason shown in status
    """The ledger's server has not answered within the bound: nothing is lost, try again later."""


class LedgerSuperseded(LedgerError):  # noqa: N818 - the reason shown in status
    """Another coordinator of this run has taken the ledger over: this one must end."""


class StoreError(RolloutError):
    """An object is missing, corrupt, or could not be written."""


class PlaceUnreachable(StoreError):  # noqa: N818 - a state
    """The place where objects shall lie cannot be reached or written into."""

    exit_code = 4


class PreconditionFailed(StoreError):  # noqa: N818 - a state
    """A named object is not the one that a change of it expected: another writer was first."""


class ObjectMissing(StoreError):  # noqa: N818 - a state
    """There is no object of this name in the place."""


class ObjectDamaged(StoreError):  # noqa: N818 - a state
    """An object's bytes are not those that its name says; ``path`` is its file, where it lies on this machine."""

    def __init__(self, message: str, path: Path | None = None) -> None:
        super().__init__(message)
        self.path = path


class NoSpace(StoreError):  # noqa: N818 - the reason shown in status
    """A disk is full; nothing that was stored before is lost."""


class HostError(RolloutError):
    """A machine that a run is sent to refuses it, or lacks something."""

    exit_code = 4


class HostUnreachable(HostError):  # noqa: N818 - a state
    """It does not answer: the next try may succeed."""


class ConnectionLost(HostError):  # noqa: N818 - a state
    """The connection to it ended in the middle; what was begun there goes on."""


class KubeError(RolloutError):
    """The cluster's API server refused a call, or does not answer."""

    exit_code = 4


class ObjectNotFound(KubeError):  # noqa: N818 - a state
    """An object that a command names is not in the cluster."""

    exit_code = 2


class EngineError(RolloutError):
    """The generation engine failed. Infrastructure: retried with the same noise, never scored."""


class VersionRefused(EngineError):  # noqa: N818 - a state
    """The engine does not serve the version that was asked for: it was restarted, or never had it."""


class InfrastructureError(RolloutError):
    """A node, a network or a service that one sample needed failed, and nothing the policy did.

    For environments to raise from ``start`` or ``step``, and for rewards that ask a judge: the sample is tried again with the same noise and,
    when all tries fail, excluded; its group goes on without it above ``grpo.quorum``.
    """


class UnscoredRows(InfrastructureError):  # noqa: N818 - a state
    """The same, of a batch whose rows it names: the others could be scored.

    ``values``: what the others got, with None in the places of those; empty where that is not known.
    """

    def __init__(self, message: str, rows: tuple[int, ...], values: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.rows = rows
        self.values = values


class MemoryRefused(RolloutError):  # noqa: N818 - a state
    """An environment's memory takes no such key, value or vector, or no further one of this episode."""


class RewardError(RolloutError):
    """A reward raised, hung past its deadline, or returned something that is not a finite number."""


class RewardUnavailable(RewardError):  # noqa: N818 - a state
    """What a reward asks was not to be had (InfrastructureError): says nothing about the completions.

    ``lost``: which completions of the batch it could not score; the others it could. ``values``: what these got, with
    None for the lost ones, where that is known. ``costs``: what was spent on each completion nevertheless, by name.
    """

    def __init__(
        self,
        message: str,
        lost: tuple[int, ...],
        values: Sequence[Any] = (),
        costs: Sequence[Mapping[str, float]] = (),
    ) -> None:
        super().__init__(message)
        self.lost = lost
        self.values = values
        self.costs = costs


class PluginError(RolloutError):
    """A plugin said what its contract does not allow, or could not do a task: the row's or its own fault, never reward."""


class CoordinatorError(RolloutError):
    """The coordinator refused a call or could not be reached within the bound."""

    exit_code = 4


class Fenced(CoordinatorError):  # noqa: N818 - a state, not a fault
    """A newer incarnation of this worker exists, or its lease went to another: stop what you do."""


class NotStored(CoordinatorError):  # noqa: N818 - a state
    """A call names an object that is not in the store: store it again, then call again."""


class CallFormatMismatch(CoordinatorError):  # noqa: N818 - a state
    """Worker and coordinator write their calls in different formats: they are of different releases."""


class StaleSettings(CoordinatorError):  # noqa: N818 - a state
    """Live settings of an older generation than those that are in force."""


class RunFailed(RolloutError):  # noqa: N818 - the word users read in status and reports
    """The run ended badly; the message names the culprit and how to go on."""
