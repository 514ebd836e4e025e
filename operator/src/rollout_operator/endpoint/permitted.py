"""What may leave for the API server as an endpoint's object: the last look before the only exit. Pure.

It asks nothing of the code that rendered. The chart's admission policy on the operator's own user says the same once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from rollout_api import names
from rollout_operator.endpoint.inputs import KIND, SERVICE_PORT, Manifest, owner_reference
from rollout_operator.kube.resources import AUTOSCALERS, OPTIONAL_CHILDREN
from rollout_operator.run.permitted import (
    Allowances,
    Fault,
    look_at_account,
    look_at_pod,
    refused_child,
)

_API_VERSIONS = {
    "ConfigMap": "v1",
    "Service": "v1",
    "ServiceAccount": "v1",
    "Deployment": "apps/v1",
    "Job": "batch/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    **{one.kind: one.api_version for one in (AUTOSCALERS, *OPTIONAL_CHILDREN)},
}
_WITH_PODS = ("Deployment", "Job")
_SCALES = ("HorizontalPodAutoscaler", "ScaledObject")
_DIGEST_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPermit:
    """Whose objects these are, and what their pods may."""

    endpoint: str
    namespace: str
    uid: str
    allowances: Allowances = field(default_factory=Allowances)

    @property
    def kind(self) -> str:
        """The kind of their owner."""
        return KIND

    def check(self, manifest: Manifest) -> None:
        """Raises ChildRefused that names the object, the field, what is permitted and what was found."""
        for name, expected, found in self._faults(manifest):
            raise refused_child(manifest, name, expected, found)

    def _faults(self, manifest: Manifest) -> Iterator[Fault]:
        kind, meta = manifest["kind"], manifest["metadata"]
        if _API_VERSIONS.get(kind) != manifest["apiVersion"]:
            yield "kind", "one of an endpoint's kinds", f"{manifest['apiVersion']} {kind}"
        if meta.get("namespace") != self.namespace:
            yield "metadata.namespace", self.namespace, meta.get("namespace")
        if not self._is_name(kind, meta["name"]):
            yield "metadata.name", "a name of this endpoint's objects", meta["name"]
        owners = meta.get("ownerReferences") or [None]
        if owners[0] != owner_reference(self.endpoint, self.uid):
            yield "metadata.ownerReferences[0]", f"endpoint {self.endpoint}", owners[0]
        if kind == "ServiceAccount":
            yield from look_at_account(manifest)
        elif (look := self._looks.get(kind)) is not None:
            yield from look(manifest["spec"])

    @property
    def _looks(self) -> Mapping[str, Callable[[Manifest], Iterator[Fault]]]:
        return {
            "Service": self._look_service,
            "HTTPRoute": self._look_route,
            **dict.fromkeys(_WITH_PODS, self._look_servers),
            **dict.fromkeys(_SCALES, self._look_scaled),
        }

    def _is_name(self, kind: str, name: str) -> bool:
        head, _, digits = name.rpartition("-")
        known = len(digits) == _DIGEST_DIGITS and set(digits) <= set("0123456789abcdef")
        if kind == "Deployment":
            own = known and head == self.endpoint
            return own or name == names.holder_name(self.endpoint)
        if kind == "Job":
            return known and name == names.measure_name(self.uid, digits)
        if kind == "ConfigMap":
            own = (names.canary_name, names.history_name, names.live_name)
            return name in [one(self.endpoint) for one in own]
        further = (names.candidate_name, names.baseline_name, names.awake_name)
        known = {one(self.endpoint) for one in further}
        return name == names.server_name(self.endpoint) or (kind == "Service" and name in known)

    def _look_service(self, spec: Manifest) -> Iterator[Fault]:
        for name in spec.keys() - {"type", "selector", "ports", "clusterIP"}:
            yield f"spec.{name}", "nothing", spec[name]
        if spec.get("clusterIP", "None") != "None":
            yield "spec.clusterIP", "nothing, or None", spec["clusterIP"]
        if spec.get("type") != "ClusterIP":
            yield "spec.type", "ClusterIP", spec.get("type")
        mine = names.server_labels(self.endpoint, self.uid).items()
        if not mine <= spec.get("selector", {}).items():
            yield "spec.selector", "servers of this endpoint", spec.get("selector")

    def _look_route(self, spec: Manifest) -> Iterator[Fault]:
        """Requests go to this endpoint's address and nowhere else, as they came."""
        for name in spec.keys() - {"parentRefs", "hostnames", "rules"}:
            yield f"spec.{name}", "nothing", spec[name]
        for rule in spec["rules"]:
            for name in rule.keys() - {"matches", "backendRefs", "timeouts"}:
                yield f"spec.rules[].{name}", "nothing", rule[name]
            for one in rule.get("backendRefs") or [None]:
                mine = {"name": names.server_name(self.endpoint), "port": SERVICE_PORT}
                if one != mine:
                    yield "spec.rules[].backendRefs[]", f"{mine}", one

    def _look_scaled(self, spec: Manifest) -> Iterator[Fault]:
        mine = {"apiVersion": "rollout.dev/v1alpha1", "kind": KIND, "name": self.endpoint}
        if spec.get("scaleTargetRef") != mine:
            yield "spec.scaleTargetRef", f"{mine}", spec.get("scaleTargetRef")

    def _look_servers(self, spec: Manifest) -> Iterator[Fault]:
        own = names.server_name(self.endpoint)
        account = self.allowances.accounts.get("actor", own)
        for name, expected, found in look_at_pod(
            spec["template"]["spec"], account, self.allowances
        ):
            yield f"spec.template.spec.{name}", expected, found
