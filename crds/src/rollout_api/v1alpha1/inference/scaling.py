"""How many servers an endpoint has as its load changes, and the way in from outside the cluster."""

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from rollout_api.base import ApiModel, Label, Name, ObjectName, OneOf, Real, Rule, Uri, many
from rollout_api.v1alpha1.common import NameRef


class ScaledByHpa(ApiModel):
    """A HorizontalPodAutoscaler (`autoscaling/v2`) on a metric of the servers' pods."""

    metric: Name | None = None
    """What an adapter for `custom.metrics.k8s.io`, such as prometheus-adapter, calls it. Unset: as the
    servers do, rollout_endpoint_saturation_ratio."""


class ScaledByKeda(ApiModel):
    """A ScaledObject of KEDA (`keda.sh/v1alpha1`), which asks a Prometheus that scrapes the servers."""

    server_address: Uri
    """Where that Prometheus is: KEDA's operator asks it, `http://prometheus.monitoring.svc:9090`."""
    authentication_ref: NameRef | None = None
    """A TriggerAuthentication in the same namespace. Unset: nothing is sent."""
    polling_seconds: int = Field(default=15, ge=1, le=3600)
    """Seconds between two questions of KEDA's to the Prometheus."""


class Scaling(OneOf):
    """An autoscaler that sets the number of servers, by how busy they are."""

    members: ClassVar[tuple[str, ...]] = ("hpa", "keda")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must not be above maxReplicas",
            "minReplicas",
        ),
    )

    hpa: ScaledByHpa | None = None
    """Kubernetes' own autoscaler, which asks an adapter for the metric."""
    keda: ScaledByKeda | None = None
    """KEDA, which has to be installed."""
    min_replicas: int = Field(default=1, ge=0, le=4096)
    """Fewest servers. 0, with `keda` only: none after `scaleDownSeconds` without a request; a small pod then holds requests until a server
    that KEDA wants for them is ready. Not beside `tls`."""
    max_replicas: int = Field(ge=1, le=4096)
    """Most servers; the runtime's ceilings hold for it. While a changed endpoint comes up there are twice as many."""
    target_saturation: Real | None = Field(default=None, gt=0, le=100)
    """Requests that wait or are answered, over those that a server's engines take at a time, of all servers on average: above it there
    are more servers, below it fewer. Unset: 0.8."""
    scale_down_seconds: int = Field(default=300, ge=0, le=3600)
    """How long fewer servers must have been enough before one goes, and nobody asked before the last one does; more come at once."""


Hostname = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=253,
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]
"""A DNS name, or `*.` and one (Gateway API)."""


class GatewayRef(ApiModel):
    """A Gateway that takes requests for the endpoint, where its listeners allow this namespace."""

    name: ObjectName
    """Name of the Gateway."""
    namespace: Label | None = None
    """Its namespace. Unset: this one."""
    section_name: ObjectName | None = None
    """One of its listeners. Unset: all that fit."""


class EndpointRoute(ApiModel):
    """An HTTPRoute (`gateway.networking.k8s.io/v1`) from Gateways to the servers."""

    gateways: tuple[GatewayRef, ...] = many(8, num_min=1)
    """Gateways that the route is attached to."""
    hostnames: tuple[Hostname, ...] = many(16)
    """Names that clients use. Empty: those of the listeners."""
