"""What stands between a run and its first pod: form, runtime, ceilings, references, queue. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from rollout_api.checks import check_document
from rollout_api.checks.environment.tools import actors_max, find_in_pods, pods_of_a_group
from rollout_api.checks.facts import Facts
from rollout_api.checks.unbuilt import check_runtime
from rollout_api.conditions import Reason
from rollout_api.names import LABEL_QUEUE
from rollout_api.presets import DEFAULTS, Filled, fill, resolve
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.runtime import ClusterRuntimeSpec, RuntimeSpec
from rollout_operator.run.plan.model import Blocked

CLUSTER = Facts(platform="cluster")
SHOWN_MAX = 5
NO_BUCKET = (
    "spec.snapshots: the run keeps its objects on its volume, where snapshots do not go with their bytes: set"
    " storage.uri to s3://bucket/prefix or gs://bucket/prefix, or leave out schedules, onSuspend, atEnd and best"
)


def check_form(document: Mapping[str, Any]) -> Blocked | None:
    """The same rules as the webhook and the command line; a gate that names field, reason and fix.

    Labels and annotations may change without a new generation, so nothing that lasts is decided by them.
    """
    bare = {**document, "metadata": {"name": document["metadata"]["name"]}}
    problems = [p for p in check_document(bare, CLUSTER) if p.severity is Severity.error]
    return Blocked(reason=Reason.INVALID_SPEC, message=describe(problems)) if problems else None


def describe(problems: Iterable[Problem]) -> str:
    """The first few problems as one message."""
    shown = [f"{p.field}: {p.message}; {p.fix} ({p.reason})" for p in problems]
    more = len(shown) - SHOWN_MAX
    return " | ".join(shown[:SHOWN_MAX]) + (f" | and {more} more" if more > 0 else "")


def resolve_spec(spec: Mapping[str, Any], runtime: RuntimeSpec) -> RolloutRunSpec:
    """The spec with the runtime's engine and storage, and every preset. Raises ValueError."""
    return fill(_on_runtime(spec, runtime), engine="vllm")


def filled_by_presets(spec: Mapping[str, Any], runtime: RuntimeSpec) -> tuple[Filled, ...]:
    """What the presets that a spec names fill in; nothing where it names none. Raises ValueError."""
    if not spec.get("preset"):
        return ()
    account = resolve(_on_runtime(spec, runtime), engine="vllm").filled
    return tuple(one for one in account if one.source != DEFAULTS)


def _on_runtime(spec: Mapping[str, Any], runtime: RuntimeSpec) -> RolloutRunSpec:
    document = {**spec}
    actors = dict(document.get("actors") or {})
    if "engine" not in actors and runtime.engine is not None:
        actors["engine"] = _plain(runtime.engine)
        document["actors"] = actors
    document["storage"] = _storage(document.get("storage"), runtime)
    if document["storage"] is None:
        del document["storage"]
    return RolloutRunSpec.model_validate(document)


def _storage(own: Mapping[str, Any] | None, runtime: RuntimeSpec) -> dict[str, Any] | None:
    platform = _plain(runtime.storage) if runtime.storage is not None else None
    if own is None or platform is None:
        return dict(own) if own is not None else platform
    return {**({"ledger": platform["ledger"]} if "ledger" in platform else {}), **own}


def _plain(model: Any) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude_none=True, exclude_unset=True)


def check_platform(
    spec: RolloutRunSpec, runtime: RuntimeSpec, *, sandboxes: bool = False
) -> Blocked | None:
    """What the runtime does not have, or does not allow; ``sandboxes``: the installation can make sandbox pods."""
    if without := _no_sandbox(spec, runtime, sandboxes=sandboxes):
        return Blocked(reason=Reason.NO_SANDBOX, message=without)
    problem = next(_platform_problems(spec, runtime), None)
    if problem is not None:
        return Blocked(reason=Reason.INVALID_SPEC, message=problem)
    over = next(_over_ceilings(spec, runtime), None)
    return Blocked(reason=Reason.CEILING_EXCEEDED, message=over) if over else None


def _platform_problems(spec: RolloutRunSpec, runtime: RuntimeSpec) -> Iterator[str]:
    if spec.code is not None and spec.code.path is not None:
        yield "spec.code.path: a folder beside the manifest is not in the cluster; use configMap, image or wheel"
    yield from _storage_problems(spec)
    if spec.code is not None and spec.code.wheel is not None:
        yield from _wheel_problems(spec.code.wheel.uri)
    classes = {one.name: one for one in runtime.accelerator_classes}
    wanted = {"learner": spec.learner.accelerator, "actors": spec.actors.accelerator}
    for role, accelerator in wanted.items():
        if accelerator is None:
            continue
        known = classes.get(accelerator.class_name)
        if known is None:
            there = ", ".join(classes) or "none"
            yield (
                f"spec.{role}.accelerator.className: the runtime has no class {accelerator.class_name!r}; "
                f"there are: {there}"
            )
        elif known.per_node and (accelerator.count or 0) > known.per_node:
            yield (
                f"spec.{role}.accelerator.count: {accelerator.count} devices, but a node of class "
                f"{known.name} has {known.per_node}"
            )
    yield from _shared_accounts(runtime)


def _no_sandbox(spec: RolloutRunSpec, runtime: RuntimeSpec, *, sandboxes: bool) -> str:
    """Why what the policy writes cannot be kept in; empty where it can, or where there is nothing to keep in."""
    field, name = next(find_in_pods(spec), ("", ""))
    if not field:
        return ""
    if runtime.sandbox is None:
        return (
            f"{field}: {name} runs what the policy writes, and the runtime has no sandbox pods: set its spec.sandbox,"
            " or leave it out"
        )
    if not sandboxes:
        return (
            f"{field}: {name} runs what the policy writes, and this installation makes no sandbox pods: that needs the"
            " chart's admissionPolicy.enabled and an operator of the whole cluster"
        )
    needed, actors = pods_of_a_group(spec), actors_max(spec)
    if runtime.sandbox.max_pods < needed * actors:
        return (
            f"{field}: the {needed} episodes of a group wait for each other and keep their sandbox pods, with up to"
            f" {actors} actors {needed * actors}, and the runtime's spec.sandbox.maxPods is"
            f" {runtime.sandbox.max_pods}: raise it, or lower the samples per prompt, or take numerics.mode Fast"
        )
    return ""


def _storage_problems(spec: RolloutRunSpec) -> Iterator[str]:
    if spec.infer is not None and _keeps_nothing(spec):
        yield (
            "spec.infer.output: a ledger in Postgres has no volume, and the run no bucket: results would go with the"
            " coordinator's pod; name s3://bucket/prefix here, or in storage.uri"
        )
    if spec.serve is not None and _in_postgres(spec):
        yield (
            "the runtime keeps ledgers in Postgres, and a service's book is a file: say"
            " storage: {ledger: {sqlite: {}}}"
        )

    if saves_itself(spec) and (spec.storage is None or spec.storage.uri is None):
        yield NO_BUCKET


def saves_itself(spec: RolloutRunSpec) -> bool:
    """Whether a run asks for RolloutSnapshots."""
    asked = spec.snapshots
    return bool(asked.schedules) or asked.on_suspend or asked.at_end or asked.best


def _keeps_nothing(spec: RolloutRunSpec) -> bool:
    """Whether the folder of an inference run's results is gone with its pod."""
    storage = spec.storage
    named = (spec.infer is not None and spec.infer.output) or (storage and storage.uri)
    return not named and _in_postgres(spec)


def _in_postgres(spec: RolloutRunSpec) -> bool:
    ledger = spec.storage.ledger if spec.storage is not None else None
    return ledger is not None and ledger.postgres is not None


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
    actors = _most_actors(spec) if spec.needs_actors else 0
    asked = (
        ("spec.actors.replicas", actors, ceilings.actor_replicas),
        ("spec.learner.nodes", spec.learner.nodes if spec.train else 0, ceilings.learner_nodes),
        ("devices over all roles", count_devices(spec), ceilings.accelerators),
        ("spec.limits.activeSeconds", spec.limits.active_seconds or 0, ceilings.active_seconds),
    )
    for field, count, bound in asked:
        if bound is not None and count > bound:
            yield f"{field}: {count} is asked for, the runtime allows {bound}"


def count_devices(spec: RolloutRunSpec) -> int:
    """Devices over all roles, with as many actors as the run may come to have."""
    return _learner_devices(spec) + _devices_of_an_actor(spec) * _most_actors(spec)


def actors_ceiling(spec: RolloutRunSpec, runtime: RuntimeSpec) -> int | None:
    """Actors that the runtime's ceilings leave room for; None without a bound."""
    ceilings, each = runtime.ceilings, _devices_of_an_actor(spec)
    if ceilings is None:
        return None
    bounds = [] if ceilings.actor_replicas is None else [ceilings.actor_replicas]
    if ceilings.accelerators is not None and each:
        bounds.append(max(0, ceilings.accelerators - _learner_devices(spec)) // each)
    return min(bounds, default=None)


def _most_actors(spec: RolloutRunSpec) -> int:
    return spec.actors.autoscale.max if spec.actors.autoscale else spec.actors.replicas


def _learner_devices(spec: RolloutRunSpec) -> int:
    if spec.learner.accelerator is None or spec.train is None:
        return 0
    each = spec.learner.accelerator.count or spec.learner.processes_per_node
    return each * spec.learner.nodes


def _devices_of_an_actor(spec: RolloutRunSpec) -> int:
    if spec.actors.accelerator is None or not spec.needs_actors:
        return 0
    vllm = spec.actors.engine.vllm if spec.actors.engine else None
    return spec.actors.accelerator.count or (vllm.tensor_parallel if vllm else 1)


def queue_of(spec: RolloutRunSpec, runtime: RuntimeSpec, labels: Mapping[str, str]) -> str:
    """The queue of a run: the spec's, the label's, the runtime's; empty without one."""
    return spec.queue_name or labels.get(LABEL_QUEUE) or runtime.queue_name or ""


def check_queue(queue: str, *, served: bool) -> Blocked | None:
    """A queue needs Kueue; without a queue nothing is asked of it."""
    if not queue or served:
        return None
    message = (
        f"queue {queue!r}: the cluster does not serve kueue.x-k8s.io/v1beta2; install Kueue, or take "
        f"spec.queueName, the label {LABEL_QUEUE} and the runtime's queueName away"
    )
    return Blocked(reason=Reason.KUEUE_NOT_INSTALLED, message=message, retry_seconds=5)


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


def parse_runtime(spec: Mapping[str, Any], kind: str) -> RuntimeSpec | Blocked:
    """The platform's half, or what is wrong with it."""
    model = ClusterRuntimeSpec if kind == "ClusterRolloutRuntime" else RuntimeSpec
    try:
        parsed = model.model_validate(spec)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        return Blocked(
            reason=Reason.RUNTIME_NOT_FOUND, message=f"the runtime's spec.{where}: {first['msg']}"
        )
    if problems := list(check_runtime(parsed)):
        message = f"the runtime's {describe(problems)}"
        return Blocked(reason=Reason.RUNTIME_NOT_FOUND, message=message)
    return parsed


def find_runtime_fault(spec: Mapping[str, Any], kind: str) -> str | None:
    """Why no run could use this runtime; None when one could."""
    runtime = parse_runtime(spec, kind)
    return runtime.message if isinstance(runtime, Blocked) else None
