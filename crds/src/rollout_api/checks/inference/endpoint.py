"""Rules of a RolloutEndpoint: what cannot be served, what only looks as if it tuned a server, what is not acted on yet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from rollout_api.checks.catalog import TINY_MODELS, suggest
from rollout_api.checks.inference.promotion import check_promotion
from rollout_api.checks.pods.pod_fields import (
    find_bad_flags,
    find_devices,
    find_plain_secrets,
    find_taken_labels,
    find_taken_variables,
)
from rollout_api.checks.refusals import not_supported
from rollout_api.checks.sizes import find_excess
from rollout_api.problems import Problem, Severity
from rollout_api.v1alpha1.inference.endpoint import EndpointModel, EndpointSpec
from rollout_api.v1alpha1.inference.scaling import Scaling

SCHEMES = ("hf", "file", "rollout")
"""Of models that a server's pod finds by itself."""
HANDED_ON = ("Latest", "Best")
"""Of a run that has ended well: models for others."""
LIVE = "Live"
"""Of a run at work: the weights that it has saved last."""
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,100}")


def check_endpoint(spec: EndpointSpec) -> Iterator[Problem]:
    """Every problem of an endpoint's spec; fields are named from ``spec.`` on."""
    yield from _unbuilt(spec)
    yield from check_promotion(spec.promotion)
    yield from _model(spec.model)
    yield from _live(spec)
    yield from find_bad_name(spec.model_name, "spec.modelName")
    yield from _engine(spec)
    yield from _scaling(spec.scaling)
    yield from _rests(spec)
    yield from _route(spec)
    yield from find_taken_labels(spec, "spec")
    yield from find_devices(spec, "spec")
    yield from find_taken_variables(spec.env, "spec")
    yield from find_plain_secrets(spec.env, "spec")
    if (excess := find_excess(spec.model_dump(mode="json", exclude_none=True))) is not None:
        yield excess
    if not spec.api_keys:
        yield Problem(
            field="spec.apiKeys",
            reason="NoKeys",
            message="no key is asked for: every pod of the namespace is answered",
            fix="name keys: apiKeys: [{name: ann, secretKeyRef: {name: ..., key: ...}}]",
            severity=Severity.warning,
        )


def check_written(spec: EndpointSpec) -> Iterator[Problem]:
    """What a person must not write, though it may be there: an autoscaler writes the number of servers into the object."""
    if spec.scaling is not None and spec.replicas != 1:
        yield Problem(
            field="spec.replicas",
            reason="TwoWriters",
            message=f"{spec.replicas} is written, and the autoscaler of spec.scaling sets the number of servers",
            fix="leave replicas out, and write the bounds: scaling.minReplicas and scaling.maxReplicas",
        )


def _unbuilt(spec: EndpointSpec) -> Iterator[Problem]:
    if spec.queue_name is not None:
        fix = "leave it out: servers of endpoints wait for no quota"
        yield not_supported("spec.queueName", "a queue for an endpoint", fix)
    if spec.sampling is not None:
        fix = "leave it out, and let clients send temperature and top_p with their requests"
        yield not_supported("spec.sampling", "sampling of an endpoint's own", fix)


def _model(model: EndpointModel) -> Iterator[Problem]:
    if model.from_run is not None:
        yield from _handed_on(model.from_run.snapshot, "spec.model.fromRun.snapshot")
    yield from _base(model)
    for name, uri in (("uri", model.uri), ("baseURI", model.base_uri)):
        if uri is not None:
            yield from _uri(uri, f"spec.model.{name}")
    yield from _revision(model)


def _handed_on(snapshot: str, field: str) -> Iterator[Problem]:
    if snapshot not in (*HANDED_ON, LIVE):
        yield Problem(
            field=field,
            reason="InvalidValue",
            message=f"a run hands on {' and '.join(HANDED_ON)}, not {snapshot!r:.120}",
            fix="write Latest, or Best, which an evaluation with selects has chosen; or Live, what it has saved last while it is at work",
        )


def follows(model: EndpointModel) -> bool:
    """Whether what is served changes while its run is at work."""
    return model.from_run is not None and model.from_run.snapshot == LIVE


def _live(spec: EndpointSpec) -> Iterator[Problem]:
    """What a server that takes weights as they come cannot have."""
    if not follows(spec.model):
        return
    if spec.engine is None or spec.engine.embedded is None:
        fix = "write engine: {embedded: {}}, or serve Latest or Best, which vLLM does"
        yield not_supported("spec.engine", "a vLLM server that follows a run at work", fix)
    fix = "leave it out, or serve Latest or Best: what a run saves at work serves untried"
    tried = {
        "evaluations": spec.promotion.evaluations,
        "canaryPercent": spec.promotion.canary_percent,
    }
    for name in (name for name, wanted in tried.items() if wanted):
        yield not_supported(f"spec.promotion.{name}", "a trial of what a run saves at work", fix)


def find_unservable(model: EndpointModel) -> Iterator[Problem]:
    """What keeps servers from finding a model by ``uri``, each by itself."""
    yield from _uri(model.uri or "", "spec.model.uri")
    yield from _revision(model)


def _base(model: EndpointModel) -> Iterator[Problem]:
    if model.snapshot_ref is not None and model.base_uri is None:
        yield Problem(
            field="spec.model.baseURI",
            reason="MissingField",
            message="a snapshot has weights, and neither configuration nor tokenizer",
            fix="name the model that its run began with, as spec.model.uri of the run does",
        )
    if model.snapshot_ref is None and model.base_uri is not None:
        yield Problem(
            field="spec.model.baseURI",
            reason="NotUsedByModel",
            message="the weights are not those of a snapshot, and bring configuration and tokenizer",
            fix="remove it, or name a snapshot by snapshotRef",
        )


def _uri(uri: str, field: str) -> Iterator[Problem]:
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        yield not_supported(
            field,
            f"a model at {parts.scheme or uri}://",
            "use hf://owner/name with a revision, file:///folder of a volume of the runtime, or rollout://name",
        )
    elif parts.scheme == "rollout" and parts.netloc not in TINY_MODELS:
        words = f"there is no model {parts.netloc!r}"
        yield _unknown(field, words, suggest(parts.netloc, TINY_MODELS))
    elif parts.scheme == "hf" and not (parts.netloc and parts.path.strip("/")):
        yield _unknown(field, "a hub model is owner/name", "write hf://Qwen/Qwen2.5-0.5B-Instruct")


def _unknown(field: str, message: str, fix: str) -> Problem:
    return Problem(field=field, reason="UnknownModel", message=message, fix=fix)


def _revision(model: EndpointModel) -> Iterator[Problem]:
    named = model.uri or model.base_uri or ""
    hub = named.startswith("hf://")
    if hub and model.revision is None:
        yield Problem(
            field="spec.model.revision",
            reason="MissingField",
            message="each server finds the model by itself, and two might find two",
            fix="name a commit of the hub's repository",
        )
    if not hub and model.revision is not None:
        yield Problem(
            field="spec.model.revision",
            reason="NotUsedByModel",
            message=f"{named or 'this model'} has no revisions",
            fix="remove it",
        )


def find_bad_name(name: str | None, field: str) -> Iterator[Problem]:
    """What clients could not ask for."""
    if name is not None and not _MODEL_NAME.fullmatch(name):
        yield Problem(
            field=field,
            reason="InvalidValue",
            message=f"{name!r:.120} is no name for a model",
            fix="write letters, digits and . _ - / only, a letter or digit first, up to 101",
        )


def _engine(spec: EndpointSpec) -> Iterator[Problem]:
    engine, accelerator = spec.engine, spec.accelerator
    if engine is not None and engine.vllm is not None:
        yield from find_bad_flags(engine.vllm.extra_arguments, "spec.engine.vllm.extraArguments")
        count = accelerator.count if accelerator is not None else None
        if count is not None and engine.vllm.tensor_parallel > count:
            yield Problem(
                field="spec.engine.vllm.tensorParallel",
                reason="TooFewDevices",
                message=f"{engine.vllm.tensor_parallel} devices share a copy, and accelerator.count is {count}",
                fix="raise accelerator.count, or lower tensorParallel",
            )
    if engine is not None and engine.embedded is not None and accelerator is not None:
        yield Problem(
            field="spec.accelerator",
            reason="NotUsedByEngine",
            message="the embedded engine has the CPU: the devices would be held for nothing",
            fix="leave it out, or use engine: {vllm: {}}",
        )


def _rests(spec: EndpointSpec) -> Iterator[Problem]:
    """What an endpoint without servers cannot be."""
    if spec.scaling is None or spec.scaling.min_replicas:
        return
    if spec.scaling.hpa is not None:
        fix = "write 1 or more, or use keda: a HorizontalPodAutoscaler rests for good where there are no servers"
        yield not_supported("spec.scaling.minReplicas", "scale to zero by an HPA", fix)
    if spec.tls is not None:
        fix = "write 1 or more, or leave tls out: who holds requests ends no TLS"
        yield not_supported("spec.scaling.minReplicas", "scale to zero beside tls", fix)


def _scaling(scaling: Scaling | None) -> Iterator[Problem]:
    if scaling is None:
        return
    if scaling.min_replicas > scaling.max_replicas:
        yield Problem(
            field="spec.scaling.minReplicas",
            reason="EmptyRange",
            message=f"minReplicas {scaling.min_replicas} is above maxReplicas {scaling.max_replicas}",
            fix="lower minReplicas, or raise maxReplicas",
        )
    if scaling.keda is not None and not _is_server(scaling.keda.server_address):
        yield Problem(
            field="spec.scaling.keda.serverAddress",
            reason="InvalidValue",
            message=f"{scaling.keda.server_address!r:.120} is no address of a Prometheus",
            fix="write http://prometheus.monitoring.svc:9090; what it asks for goes into a TriggerAuthentication",
        )


def _is_server(address: str) -> bool:
    """An HTTP address without a password, a query or a fragment; none is ours to keep."""
    try:
        parts = urlsplit(address)
        plain = parts.port is None or parts.port > 0
    except ValueError:
        return False
    bare = not (parts.query or parts.fragment or "@" in parts.netloc)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain and bare


def _route(spec: EndpointSpec) -> Iterator[Problem]:
    if spec.route is None:
        return
    if spec.tls is not None:
        yield Problem(
            field="spec.route",
            reason="Contradiction",
            message="a Gateway reaches servers by plain HTTP, and spec.tls has them speak TLS",
            fix="leave spec.tls out: the Gateway ends TLS; or spec.route",
        )
    if not spec.api_keys:
        yield Problem(
            field="spec.route",
            reason="NoKeys",
            message="no key is asked for, and then only pods of the namespace may reach the servers",
            fix="name keys: apiKeys: [{name: ann, secretKeyRef: {name: ..., key: ...}}]",
        )
