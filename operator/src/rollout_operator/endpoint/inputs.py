"""Everything that rendering an endpoint takes, and names that its pods rely on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout_api import names
from rollout_api.serving import LiveOrder
from rollout_api.v1alpha1.inference.endpoint import EndpointSpec, ServedVllm
from rollout_api.v1alpha1.runtime import AcceleratorClass, RoleTemplate, RuntimeSpec
from rollout_api.v1alpha1.storage import Storage
from rollout_api.worker import AdoptOrder
from rollout_operator.endpoint.model import ServedModel
from rollout_operator.run.render.contract import API_KEYS_FOLDER, CACHE_FOLDER
from rollout_operator.run.render.inputs import Platform
from rollout_operator.run.render.layers import PodLayers

Manifest = dict[str, Any]
TEMPLATE_VERSION = "2"
"""Raised with every change of what servers' pods look like: it makes another revision of every endpoint."""
KIND = "RolloutEndpoint"
PORT, TLS_PORT = 8000, 8443
SERVICE_PORT, TLS_SERVICE_PORT = 80, 443
LEAVE_SECONDS = 10
"""How long a pod that ends goes on taking requests: until every node has heard that it ends."""
GRACE_SECONDS = 15
"""Beside leaving and draining: for processes to end."""
KEYS_FOLDER = API_KEYS_FOLDER
CANARY_FOLDER, CANARY_KEY = "/var/run/rollout/canary", "canary.json"
LIVE_FOLDER, LIVE_KEY = "/var/run/rollout/live", "live.json"
SERVER, ENGINE = "server", "engine"
"""Containers: our gateway, with an engine of ours or beside a vLLM server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInputs:
    """One endpoint on its runtime."""

    name: str
    namespace: str
    uid: str
    spec: EndpointSpec
    model: ServedModel
    runtime: RuntimeSpec
    platform: Platform

    @property
    def vllm(self) -> ServedVllm | None:
        """The vLLM server beside the gateway; None: the gateway's own engine serves."""
        engine = self.spec.engine
        if engine is None:
            return ServedVllm()
        return engine.vllm

    @property
    def template(self) -> RoleTemplate:
        """What the platform sets on servers: as on actors."""
        roles = self.runtime.roles
        return (roles.actors if roles is not None else None) or RoleTemplate()

    @property
    def device(self) -> tuple[AcceleratorClass, int] | None:
        """The class and number of a pod's devices; its class is the runtime's."""
        wanted = self.spec.accelerator
        if wanted is None:
            return None
        found = next(c for c in self.runtime.accelerator_classes if c.name == wanted.class_name)
        return found, wanted.count or (self.vllm.tensor_parallel if self.vllm else 1)

    @property
    def storage(self) -> Storage | None:
        """How servers reach the bucket of a run's model, or of its weights; None where that is not what they serve."""
        handed_on = self.model.digest and self.model.snapshot is None
        if not handed_on and self.model.live is None:
            return None
        known = self.runtime.storage or Storage()
        return Storage(endpoint=known.endpoint, region=known.region)

    @property
    def snapshot(self) -> AdoptOrder | None:
        """The snapshot whose weights are served, and how servers reach and judge it; None where there is none."""
        found, known = self.model.snapshot, self.runtime.storage or Storage()
        if found is None:
            return None
        return AdoptOrder(
            snapshot=found.id,
            place=found.place,
            trusted=found.trusted,
            foreign=found.foreign,
            namespace=self.namespace,
            endpoint=known.endpoint,
            region=known.region,
        )

    @property
    def live(self) -> LiveOrder | None:
        """The run whose weights are followed; nothing of it changes with them. None where there is none."""
        found = self.model.live
        if found is None:
            return None
        return LiveOrder(
            name=found.run,
            run=found.version.run,
            place=found.place,
            chat_template=found.chat_template,
            file=f"{LIVE_FOLDER}/{LIVE_KEY}",
        )

    @property
    def layers(self) -> PodLayers:
        """All that is said about the pods."""
        return PodLayers(
            template=self.template,
            user=self.spec,
            device=self.device,
            spot=self.spec.preemptible,
        )

    @property
    def worker_image(self) -> str:
        """Image of the gateway."""
        images = self.runtime.images
        return (images.worker if images else None) or self.platform.worker_image

    @property
    def image(self) -> str:
        """Image of what computes."""
        vllm, images = self.vllm, self.runtime.images
        if vllm is None:
            return self.worker_image
        return vllm.image or (images.vllm if images else None) or self.platform.vllm_image

    @property
    def account(self) -> str:
        """Name of the pods' service account."""
        return self.template.service_account_name or names.server_name(self.name)

    @property
    def shares_cache(self) -> bool:
        """Whether the model cache is of several pods: servers only read it."""
        cache = self.runtime.model_cache
        return cache is not None and cache.empty_dir is None

    @property
    def cache_root(self) -> str:
        """The folder of the model cache that is this endpoint's to read: in a node's folder its namespace's."""
        cache = self.runtime.model_cache
        own = cache is not None and cache.host_path is not None
        return f"{CACHE_FOLDER}/{self.namespace}" if own else CACHE_FOLDER

    @property
    def inside(self) -> str:
        """Name of the port without TLS."""
        return names.PORT_CLIENTS if self.spec.tls is None else names.PORT_INSIDE

    @property
    def selector(self) -> dict[str, str]:
        """Labels of all servers."""
        return names.server_labels(self.name, self.uid)

    def meta(self, name: str) -> Manifest:
        """Metadata of a child: owned by the endpoint, and so gone with it."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": {**self.common_labels, **self.selector},
            "annotations": {names.ANNOTATION_TEMPLATE_VERSION: TEMPLATE_VERSION},
            "ownerReferences": [owner_reference(self.name, self.uid)],
        }

    @property
    def common_labels(self) -> Mapping[str, str]:
        """The recommended labels of every child."""
        return {
            names.LABEL_NAME: "rollout",
            names.LABEL_INSTANCE: self.name,
            names.LABEL_COMPONENT: SERVER,
            names.LABEL_PART_OF: "rollout",
            names.LABEL_MANAGED_BY: names.MANAGER_CHILDREN,
        }


def owner_reference(name: str, uid: str) -> Manifest:
    """The endpoint as the controller of a child."""
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def address(name: str, namespace: str, *, tls: bool) -> str:
    """Where clients of the cluster reach an endpoint: the base URL of OpenAI's clients."""
    scheme = "https" if tls else "http"
    return f"{scheme}://{names.server_name(name)}.{namespace}.svc/v1"
