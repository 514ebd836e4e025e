"""Training as a service: one process on a CPU with its book on the run's volume; all that it does not read is refused."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_api.checks.facts import Facts
from rollout_api.checks.inference.endpoint import find_bad_name
from rollout_api.checks.refusals import not_supported, unread
from rollout_api.fields.credentials import COORDINATOR_SECRETS
from rollout_api.problems import Problem
from rollout_api.v1alpha1.pods.roles import Actors
from rollout_api.v1alpha1.run import RolloutRunSpec

_OF_NO_SERVICE = "of a service, which trains adapters in Float32 as clients ask for them,"
_LOOP = "of a run with a loop of its own, which a service has not,"
_LIMITS_OF_LOOPS = (
    *("gang_seconds", "no_progress_seconds", "sample_seconds", "sample_attempts"),
    *("mismatch_kl_warn", "mismatch_kl_stop", "retokenised_warn", "retokenised_stop"),
    "reward_divergence",
)
_PLACES = ("uri", "endpoint", "region", "kms_key", "cache_size")


def a_service_is_one_process(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """One pod on the CPU computes everything."""
    if spec.serve is None:
        return
    learner, several = spec.learner, "leave it out: one process makes all calls"
    if learner.nodes > 1:
        yield not_supported("spec.learner.nodes", "a service of several replicas", several)
    if learner.processes_per_node > 1:
        yield not_supported("spec.learner.processesPerNode", "a service of several ranks", several)
    if learner.accelerator is not None:
        fix = "leave it out: the service computes on the CPU"
        yield not_supported("spec.learner.accelerator", "a service on GPUs", fix)
    if learner.strategy.fsdp is not None:
        yield not_supported("spec.learner.strategy.fsdp", "a service of several ranks", several)
    yield from unread(learner, ("env",), "spec.learner", "of a service")
    yield from _actors(spec.actors)


def _actors(actors: Actors) -> Iterator[Problem]:
    engine, plain = actors.engine, Actors()
    for name in Actors.model_fields:
        if name != "engine" and getattr(actors, name) != getattr(plain, name):
            alias = Actors.model_fields[name].alias or name
            fix = "leave it out: the service samples by itself"
            yield not_supported(f"spec.actors.{alias}", "actors of a service", fix)
    if engine is not None and engine.vllm is not None:
        fix = "leave it out: samples are drawn by the embedded engine"
        yield not_supported("spec.actors.engine.vllm", "a service that samples with vLLM", fix)
    if engine is not None and engine.embedded is not None:
        path = "spec.actors.engine.embedded"
        yield from unread(engine.embedded, ("batch_groups",), path, "of a service")


def a_service_has_no_loop(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """What only a loop of the run's own would read."""
    if spec.serve is None:
        return
    plain = type(spec).model_validate({"model": {"uri": "rollout://tiny-adder"}, "serve": {}})
    for name in ("evaluations", "snapshots", "tracking", "code", "seed", "numerics"):
        if getattr(spec, name) != getattr(plain, name):
            yield not_supported(f"spec.{name}", f"{name} {_LOOP}", "leave it out")
    yield from unread(spec.limits, _LIMITS_OF_LOOPS, "spec.limits", _LOOP)
    for index, item in enumerate(spec.env):
        if item.secret is None or item.name not in COORDINATOR_SECRETS:
            fix = (
                f"leave it out: a service gets {', '.join(sorted(COORDINATOR_SECRETS))}, of Secrets"
            )
            yield not_supported(f"spec.env[{index}]", f"variable {item.name} of a service", fix)


def a_service_shares_a_plain_base(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """Clients say what adapter they want; the base is taken as it lies there."""
    if spec.serve is None:
        return
    model = spec.model
    names = ("from_run", "revision", "lora", "chat_template")
    yield from unread(model, names, "spec.model", _OF_NO_SERVICE)
    if model.dtype == "BFloat16":
        yield not_supported("spec.model.dtype", "a service in BFloat16", "use Float32")
    yield from find_bad_name(spec.serve.model_name, "spec.serve.modelName")


def a_book_lies_on_the_volume(spec: RolloutRunSpec, _: Facts) -> Iterator[Problem]:
    """The book and what was saved are files of one folder."""
    storage = spec.storage
    if spec.serve is None or storage is None:
        return
    yield from unread(storage, _PLACES, "spec.storage", "of a service, whose book is a file,")
    ledger = storage.ledger
    if ledger is not None and ledger.postgres is not None:
        fix = "leave it out: the book lies on the run's volume"
        yield not_supported("spec.storage.ledger.postgres", "a book of calls in Postgres", fix)
    if ledger is not None:
        yield from unread(ledger, ("retention",), "spec.storage.ledger", "of a book of calls")


def a_service_of_a_cluster_asks_for_keys(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """A key's name is the owner of what is made: without one nobody could be told from anybody."""
    if spec.serve is None or facts.platform != "cluster" or spec.serve.api_keys:
        return
    yield Problem(
        field="spec.serve.apiKeys",
        reason="MissingField",
        message="no client could be let in: a service in a cluster knows its clients by their keys",
        fix="name keys: apiKeys: [{name: ann, secretKeyRef: {name: ..., key: ...}}]",
    )


RULES = (
    a_service_is_one_process,
    a_service_has_no_loop,
    a_service_shares_a_plain_base,
    a_book_lies_on_the_volume,
    a_service_of_a_cluster_asks_for_keys,
)
