"""What stands between a run and its first pod: form, runtime, ceilings, references, storage, queue. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from rollout_api.checks import check_document
from rollout_api.checks.facts import Facts
from rollout_api.conditions import Reason
from rollout_api.names import LABEL_QUEUE
from rollout_api.presets import fill
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.desired.volumes import CLAIM, claim_name
from rollout_operator.planning.model import Gate

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
CLUSTER = Facts(platform="cluster")
SHOWN_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """A StorageClass."""

    name: str
    provisioner: str
    default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Another run whose result is wanted. ``uri``: where the model of that snapshot lies, when there is one."""

    name: str
    snapshot: str = "Latest"
    state: Literal["Missing", "Waiting", "Failed", "Succeeded", "Cycle"]
    uri: str | None = None
    claim: str = ""


def handed_on(name: str, uid: str, snapshot: str, status: Mapping[str, Any]) -> Upstream:
    """The model that a run which has succeeded offers. A volume is taken only when it is that run's own."""
    wanted = {"Latest": "lastSnapshot", "Best": "best"}.get(snapshot, "")
    uri = (status.get(wanted) or {}).get("modelUri")
    if uri is None or not uri.startswith(CLAIM):
        return Upstream(name=name, snapshot=snapshot, state="Succeeded", uri=uri)
    claim = claim_name(name, uid)
    own = uri.startswith(f"{CLAIM}{claim}/")
    return Upstream(
        name=name,
        snapshot=snapshot,
        state="Succeeded",
        uri=uri if own else None,
        claim=claim if own else "",
    )


def check_form(document: Mapping[str, Any]) -> Gate | None:
    """The same rules as the webhook and the command line; a gate that names field, reason and fix.

    Labels and annotations may change without a new generation, so nothing that lasts is decided by them.
    """
    bare = {**document, "metadata": {"name": document["metadata"]["name"]}}
    problems = [p for p in check_document(bare, CLUSTER) if p.severity is Severity.error]
    return Gate(reason=Reason.INVALID_SPEC, message=describe(problems)) if problems else None


def describe(problems: Iterable[Problem]) -> str:
    """The first few problems as one message."""
    shown = [f"{p.field}: {p.message}; {p.fix} ({p.reason})" for p in problems]
    more = len(shown) - SHOWN_MAX
    return " | ".join(shown[:SHOWN_MAX]) + (f" | and {more} more" if more > 0 else "")


def resolve_spec(spec: Mapping[str, Any], runtime: RuntimeSpec) -> RolloutRunSpec:
    """The spec with the runtime's engine and storage, and every preset. Raises ValueError."""
    document = {**spec}
    actors = dict(document.get("actors") or {})
    if "engine" not in actors and runtime.engine is not None:
        actors["engine"] = _plain(runtime.engine)
        document["actors"] = actors
    document["storage"] = _storage(document.get("storage"), runtime)
    if document["storage"] is None:
        del document["storage"]
    return fill(RolloutRunSpec.model_validate(document), engine="vllm")


def _storage(own: Mapping[str, Any] | None, runtime: RuntimeSpec) -> dict[str, Any] | None:
    platform = _plain(runtime.storage) if runtime.storage is not None else None
    if own is None or platform is None:
        return dict(own) if own is not None else platform
    return {**({"ledger": platform["ledger"]} if "ledger" in platform else {}), **own}


def _plain(model: Any) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude_none=True, exclude_unset=True)


def check_platform(spec: RolloutRunSpec, runtime: RuntimeSpec) -> Gate | None:
    """What the runtime does not have, or does not allow."""
    problem = next(_platform_problems(spec, runtime), None)
    if problem is not None:
        return Gate(reason=Reason.INVALID_SPEC, message=problem)
    over = next(_over_ceilings(spec, runtime), None)
    return Gate(reason=Reason.CEILING_EXCEEDED, message=over) if over else None


def _platform_problems(spec: RolloutRunSpec, runtime: RuntimeSpec) -> Iterator[str]:
    if spec.code is not None and spec.code.path is not None:
        yield "spec.code.path: a folder beside the manifest is not in the cluster; use configMap, image or wheel"
    if spec.code is not None and spec.code.wheel is not None:
        yield from _wheel_problems(spec.code.wheel.uri)
    classes = {one.name: one for one in runtime.accelerator_classes}
    wanted = {"learner": spec.learner.accelerator, "actors": spec.actors.accelerator}
    for role, accelerator in wanted.items():
        if accelerator is None:
            continue
        known = classes.get(accelerator.class_)
        if known is None:
            there = ", ".join(classes) or "none"
            yield (
                f"spec.{role}.accelerator.class: the runtime has no class {accelerator.class_!r}; "
                f"there are: {there}"
            )
        elif known.per_node and (accelerator.count or 0) > known.per_node:
            yield (
                f"spec.{role}.accelerator.count: {accelerator.count} devices, but a node of class "
                f"{known.name} has {known.per_node}"
            )
    yield from _shared_accounts(runtime)


def _wheel_problems(uri: str) -> Iterator[str]:
    if not uri.startswith(("https://", "s3://", "file:///")):
        yield (
            f"spec.code.wheel.uri: pods fetch from https://, s3:// or file:/// (a volume of the runtime); "
            f"{uri!r} is none of them"
        )


def _shared_accounts(runtime: RuntimeSpec) -> Iterator[str]:
    roles = runtime.roles
    if roles is None:
        return
    templates = (roles.coordinator, roles.learner, roles.actors)
    accounts = [t.service_account_name for t in templates if t and t.service_account_name]
    if len(set(accounts)) < len(accounts):
        yield (
            "the runtime gives two roles one service account: tokens could not tell them apart; "
            "use one account per role"
        )


def _over_ceilings(spec: RolloutRunSpec, runtime: RuntimeSpec) -> Iterator[str]:
    ceilings = runtime.ceilings
    if ceilings is None:
        return
    actors = spec.actors.autoscale.max if spec.actors.autoscale else spec.actors.replicas
    asked = (
        ("spec.actors.replicas", actors if spec.needs_actors else 0, ceilings.actor_replicas),
        ("spec.learner.nodes", spec.learner.nodes if spec.train else 0, ceilings.learner_nodes),
        ("devices over all roles", count_devices(spec), ceilings.accelerators),
        ("spec.limits.activeSeconds", spec.limits.active_seconds or 0, ceilings.active_seconds),
    )
    for field, count, bound in asked:
        if bound is not None and count > bound:
            yield f"{field}: {count} is asked for, the runtime allows {bound}"


def count_devices(spec: RolloutRunSpec) -> int:
    """Devices over all roles."""
    total = 0
    if spec.learner.accelerator is not None and spec.train is not None:
        each = spec.learner.accelerator.count or spec.learner.processes_per_node
        total += each * spec.learner.nodes
    if spec.actors.accelerator is not None and spec.needs_actors:
        vllm = spec.actors.engine.vllm if spec.actors.engine else None
        each = spec.actors.accelerator.count or (vllm.tensor_parallel if vllm else 1)
        total += each * spec.actors.replicas
    return total


def queue_of(spec: RolloutRunSpec, runtime: RuntimeSpec, labels: Mapping[str, str]) -> str:
    """The queue of a run: the spec's, the label's, the runtime's; empty without one."""
    return spec.queue_name or labels.get(LABEL_QUEUE) or runtime.queue_name or ""


def check_queue(queue: str, *, served: bool) -> Gate | None:
    """A queue needs Kueue; without a queue nothing is asked of it."""
    if not queue or served:
        return None
    message = (
        f"queue {queue!r}: the cluster does not serve kueue.x-k8s.io/v1beta2; install Kueue, or take "
        f"spec.queueName, the label {LABEL_QUEUE} and the runtime's queueName away"
    )
    return Gate(reason=Reason.KUEUE_NOT_INSTALLED, message=message, retry_seconds=5)


def check_upstreams(upstreams: Iterable[Upstream]) -> Gate | None:
    """Other runs come first."""
    for one in upstreams:
        if one.state == "Cycle":
            message = f"fromRun {one.name}: the runs wait for each other in a circle"
            return Gate(reason=Reason.INVALID_SPEC, message=message)
        if one.state == "Missing":
            message = f"fromRun {one.name}: there is no such run in this namespace"
            return Gate(reason=Reason.REFERENCE_NOT_FOUND, message=message, retry_seconds=10)
        if one.state == "Failed":
            message = f"run {one.name} has failed; this run waits for one that finishes well"
            return Gate(reason=Reason.WAITING_FOR_RUN, message=message)
        if one.state == "Waiting":
            message = f"waits for run {one.name}"
            return Gate(reason=Reason.WAITING_FOR_RUN, message=message, stalled=False)
        if one.uri is None:
            message = (
                f"run {one.name} has finished and has handed on no model {one.snapshot!r}; there is "
                "Latest where the log of its coordinator names no trouble, and Best where an "
                "evaluation selects; a run with Postgres needs storage.uri for it"
            )
            return Gate(reason=Reason.REFERENCE_NOT_FOUND, message=message)
    return None


def check_storage(spec: RolloutRunSpec, classes: tuple[Class, ...] | None) -> Gate | None:
    """A volume for the ledger needs a StorageClass; ``classes`` None is not known."""
    if classes is None or not needs_volume(spec):
        return None
    wanted = wanted_class(spec)
    if wanted is None and not any(one.default for one in classes):
        message = "the ledger needs a volume, and the cluster has no default StorageClass"
        return Gate(reason=Reason.NO_STORAGE_CLASS, message=message, retry_seconds=5)
    if wanted is not None and all(one.name != wanted for one in classes):
        message = f"the ledger's StorageClass {wanted!r} does not exist"
        return Gate(reason=Reason.NO_STORAGE_CLASS, message=message, retry_seconds=5)
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


def referenced(document: Any) -> Iterator[tuple[str, str]]:
    """Secrets and ConfigMaps that a spec names, as (kind, name)."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in _REFERENCES and isinstance(value, dict) and "name" in value:
                yield _REFERENCES[key], value["name"]
            else:
                yield from referenced(value)
    elif isinstance(document, list):
        for item in document:
            yield from referenced(item)


_REFERENCES = {
    "secretKeyRef": "Secret",
    "secretRef": "Secret",
    "configMapRef": "ConfigMap",
    "configMap": "ConfigMap",
    "apiKey": "Secret",
}


def from_runs(document: Any) -> Iterator[Mapping[str, Any]]:
    """Every ``fromRun`` of a spec."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key == "fromRun" and isinstance(value, dict):
                yield value
            else:
                yield from from_runs(value)
    elif isinstance(document, list):
        for item in document:
            yield from from_runs(item)


def wanted_model(reference: Mapping[str, Any]) -> tuple[str, str]:
    """Run and snapshot of a ``fromRun``."""
    return reference.get("name", ""), reference.get("snapshot") or "Latest"


def with_uris(document: Any, uris: Mapping[tuple[str, str], str]) -> Any:
    """A spec in which every ``fromRun`` has become the place of that run's model, by name and snapshot."""
    if isinstance(document, dict):
        found = document.get("fromRun")
        rest = {key: with_uris(value, uris) for key, value in document.items() if key != "fromRun"}
        if isinstance(found, dict) and (uri := uris.get(wanted_model(found))):
            return {**rest, "uri": uri}
        return {**rest, **({"fromRun": found} if found is not None else {})}
    return [with_uris(item, uris) for item in document] if isinstance(document, list) else document


def parse_runtime(spec: Mapping[str, Any]) -> RuntimeSpec | Gate:
    """The platform's half, or what is wrong with it."""
    try:
        return RuntimeSpec.model_validate(spec)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        return Gate(
            reason=Reason.RUNTIME_NOT_FOUND, message=f"the runtime's spec.{where}: {first['msg']}"
        )
