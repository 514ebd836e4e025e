"""What sets the number of an endpoint's servers, and the way in from outside the cluster: an autoscaler, an HTTPRoute.

An autoscaler writes the ``scale`` subresource of the RolloutEndpoint, and nothing else: which Deployments there are is the
operator's, so that a revision that comes up beside another has as many servers, and no two writers share a field.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from rollout_api import names
from rollout_api.v1alpha1.inference.scaling import EndpointRoute, GatewayRef, ScaledByKeda, Scaling
from rollout_operator.endpoint.inputs import KIND, SERVICE_PORT, Manifest, ServerInputs
from rollout_operator.kube.resources import AUTOSCALERS, HTTP_ROUTES, SCALED_OBJECTS

METRIC = "rollout_endpoint_saturation_ratio"
SATURATION = 0.8
QUEUE_SECONDS = 60
"""How long a request may wait before it is answered, beside ``requestSeconds``."""
PATHS = ("/v1", "/tokenize", "/classify")
"""What clients ask for; health and metrics are for the cluster."""


def build_traffic(inputs: ServerInputs) -> Iterator[Manifest]:
    """The autoscaler and the route that the spec asks for."""
    scaling, route = inputs.spec.scaling, inputs.spec.route
    if scaling is not None:
        yield _build_hpa(inputs, scaling) if scaling.keda is None else _build_keda(inputs, scaling)
    if route is not None:
        yield _build_route(inputs, route)


def _build_hpa(inputs: ServerInputs, scaling: Scaling) -> Manifest:
    assert scaling.hpa is not None
    pods = {
        "metric": {"name": scaling.hpa.metric or METRIC},
        "target": {"type": "AverageValue", "averageValue": _milli(_target(scaling))},
    }
    return {
        "apiVersion": AUTOSCALERS.api_version,
        "kind": AUTOSCALERS.kind,
        "metadata": inputs.meta(names.server_name(inputs.name)),
        "spec": {
            "scaleTargetRef": _scaled(inputs),
            "minReplicas": scaling.min_replicas,
            "maxReplicas": scaling.max_replicas,
            "metrics": [{"type": "Pods", "pods": pods}],
            "behavior": _behaviour(scaling),
        },
    }


def _build_keda(inputs: ServerInputs, scaling: Scaling) -> Manifest:
    assert scaling.keda is not None
    return {
        "apiVersion": SCALED_OBJECTS.api_version,
        "kind": SCALED_OBJECTS.kind,
        "metadata": inputs.meta(names.server_name(inputs.name)),
        "spec": {
            "scaleTargetRef": _scaled(inputs),
            "pollingInterval": scaling.keda.polling_seconds,
            "minReplicaCount": scaling.min_replicas,
            "maxReplicaCount": scaling.max_replicas,
            "cooldownPeriod": scaling.scale_down_seconds,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behaviour(scaling)}},
            "triggers": [_build_trigger(inputs, scaling, scaling.keda)],
        },
    }


def _build_trigger(inputs: ServerInputs, scaling: Scaling, keda: ScaledByKeda) -> Manifest:
    pods = f"{inputs.name}-[0-9a-f]{{10}}-[^-]+(-[^-]+)?"
    if not scaling.min_replicas:
        pods = f"{pods}|{names.holder_name(inputs.name)}-[^-]+(-[^-]+)?"
    trigger: Manifest = {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": keda.server_address,
            "query": f'sum({METRIC}{{namespace="{inputs.namespace}", pod=~"{pods}"}})',
            "threshold": _plain(_target(scaling)),
        },
    }
    if (reference := keda.authentication_ref) is not None:
        trigger["authenticationRef"] = {"name": reference.name}
    return trigger


def _scaled(inputs: ServerInputs) -> Manifest:
    """The endpoint, which has a ``scale`` subresource."""
    return {"apiVersion": "rollout.dev/v1alpha1", "kind": KIND, "name": inputs.name}


def _behaviour(scaling: Scaling) -> Manifest:
    return {
        "scaleUp": {"stabilizationWindowSeconds": 0},
        "scaleDown": {"stabilizationWindowSeconds": scaling.scale_down_seconds},
    }


def _target(scaling: Scaling) -> Decimal:
    target = SATURATION if scaling.target_saturation is None else scaling.target_saturation
    return max(Decimal(1), (Decimal(repr(target)) * 1000).to_integral_value()) / 1000


def _milli(number: Decimal) -> str:
    """As the API server writes a quantity: in whole ones where it is, else in thousandths."""
    whole = number.to_integral_value()
    return f"{whole:f}" if number == whole else f"{number * 1000:.0f}m"


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"


def _build_route(inputs: ServerInputs, route: EndpointRoute) -> Manifest:
    matches = [{"path": {"type": "PathPrefix", "value": one}} for one in PATHS]
    seconds = inputs.spec.request_seconds + QUEUE_SECONDS
    spec: Manifest = {
        "parentRefs": [_parent(one) for one in route.gateways],
        "rules": [
            {
                "matches": matches,
                "backendRefs": [{"name": names.server_name(inputs.name), "port": SERVICE_PORT}],
                "timeouts": {"request": f"{seconds}s"},
            }
        ],
    }
    if route.hostnames:
        spec["hostnames"] = list(route.hostnames)
    return {
        "apiVersion": HTTP_ROUTES.api_version,
        "kind": HTTP_ROUTES.kind,
        "metadata": inputs.meta(names.server_name(inputs.name)),
        "spec": spec,
    }


def _parent(gateway: GatewayRef) -> Manifest:
    found = {
        "name": gateway.name,
        "namespace": gateway.namespace,
        "sectionName": gateway.section_name,
    }
    return {key: value for key, value in found.items() if value is not None}
