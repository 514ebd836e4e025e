"""The pod of a server: a gateway with an engine of ours in it, or with a vLLM server beside it; nothing privileged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rollout_api import names
from rollout_api.serving import VARIABLE, ServeOrder
from rollout_api.v1alpha1.inference.endpoint import ServingEngine
from rollout_operator.endpoint.inputs import (
    CANARY_FOLDER,
    CANARY_KEY,
    ENGINE,
    GRACE_SECONDS,
    KEYS_FOLDER,
    LEAVE_SECONDS,
    LIVE_FOLDER,
    PORT,
    SERVER,
    TLS_PORT,
    Manifest,
    ServerInputs,
)
from rollout_operator.run.render import contract
from rollout_operator.run.render.inputs import CACHE_VOLUME, MODELS
from rollout_operator.run.render.layers import (
    build_spread,
    merge_annotations,
    merge_env,
    merge_placement,
    merge_resources,
)
from rollout_operator.run.render.pods import (
    CONTAINED,
    NAMED,
    SIDE_RESOURCES,
    cache_env,
    pull_policy_of,
    read_only_env,
    security_of,
)
from rollout_operator.run.render.volumes import (
    KEYS_VOLUME,
    Mount,
    cache_source,
    further,
    keys_mount,
    secret_files,
    shm_mount,
)

COMMAND = ["python", "-m", "rollout.entrypoints.serving.pod"]
PLACE = [*COMMAND, "--place"]
ENGINE_VOLUME, CANARY_VOLUME, TLS_VOLUME, LIVE_VOLUME = "engine", "canary", "tls", "live"
START_PERIOD_SECONDS, START_SECONDS_MAX = 5, 24 * 3600
"""Of a model's load time; whether a revision takes too long is the Deployment's progress deadline to say."""


def build_template(inputs: ServerInputs) -> Manifest:
    """The pod template of a revision, without the revision's own label."""
    mounts = build_mounts(inputs)
    images = inputs.runtime.images
    first = list(_init_containers(inputs, mounts))
    spec: Manifest = {
        "serviceAccountName": inputs.account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security_of(inputs.template),
        "terminationGracePeriodSeconds": LEAVE_SECONDS + inputs.spec.drain_seconds + GRACE_SECONDS,
        "containers": [_server(inputs, mounts)],
        **({"initContainers": first} if first else {}),
        "volumes": [mount.volume() for mount in mounts],
        **merge_placement(inputs.layers, spread=build_spread(inputs.selector)),
    }
    if images is not None and images.pull_secrets:
        spec["imagePullSecrets"] = [{"name": one.name} for one in images.pull_secrets]
    labels = {**inputs.template.labels, **inputs.spec.labels}
    meta: Manifest = {"labels": {**labels, **inputs.common_labels, **inputs.selector}}
    if annotations := merge_annotations(inputs.layers):
        meta["annotations"] = annotations
    return {"metadata": meta, "spec": spec}


def build_order(inputs: ServerInputs) -> ServeOrder:
    """What the pod is told; the names of keys, never one of them."""
    spec, vllm = inputs.spec, inputs.vllm
    wanted = spec.resources or inputs.template.resources
    cores = 0 if wanted is None else wanted.whole_cores
    return ServeOrder(
        name=spec.model_name or inputs.name,
        uri=inputs.model.uri,
        revision=inputs.model.revision,
        storage=inputs.storage,
        snapshot=inputs.snapshot,
        live=inputs.live,
        engine=spec.engine or ServingEngine(vllm=vllm),
        keys=tuple(one.name for one in spec.api_keys),
        keys_dir=KEYS_FOLDER,
        work_dir=contract.RUN_FOLDER,
        port=PORT,
        tls_port=TLS_PORT if spec.tls is not None else None,
        tls_dir=contract.TLS_FOLDER if spec.tls is not None else None,
        threads=max(1, cores),
        on_accelerator=inputs.device is not None,
        request_seconds=spec.request_seconds,
        drain_seconds=spec.drain_seconds,
        leave_seconds=LEAVE_SECONDS,
        canary_file=f"{CANARY_FOLDER}/{CANARY_KEY}",
    )


def build_mounts(inputs: ServerInputs) -> list[Mount]:
    """Everything that a pod mounts; a volume marked ``engine`` is the vLLM server's, too."""
    mounts = [
        Mount(name="work", path=contract.RUN_FOLDER, source={"emptyDir": {}}),
        Mount(name="tmp", path="/tmp", source={"emptyDir": {}}, engine=True),  # noqa: S108 - a volume of the pod
        Mount(name="home", path=contract.HOME_FOLDER, source={"emptyDir": {}}),
        Mount(
            name=CACHE_VOLUME,
            path=contract.CACHE_FOLDER,
            source=cache_source(inputs.runtime.model_cache),
            read_only=inputs.shares_cache,
            engine=True,
        ),
        shm_mount(inputs.spec.shared_memory or inputs.template.shared_memory),
    ]
    if inputs.spec.api_keys:
        mounts.append(keys_mount(inputs.spec.api_keys))
    if (tls := inputs.spec.tls) is not None:
        files = secret_files(tls.secret_ref.name, contract.CERTIFICATE, contract.PRIVATE_KEY)
        mounts.append(
            Mount(name=TLS_VOLUME, path=contract.TLS_FOLDER, source=files, read_only=True)
        )
    mounts.append(_canary(inputs))
    if inputs.live is not None:
        mounts.append(_live(inputs))
    if inputs.vllm is not None:
        source = {"emptyDir": {"medium": "Memory"}}
        folder = Mount(name=ENGINE_VOLUME, path=contract.ENGINE_FOLDER, source=source, engine=True)
        mounts.append(folder)
    return [*mounts, *map(further, inputs.template.volumes)]


def _canary(inputs: ServerInputs) -> Mount:
    """Where a candidate is told of: a ConfigMap that may not be there."""
    source = {"name": names.canary_name(inputs.name), "optional": True}
    return Mount(
        name=CANARY_VOLUME, path=CANARY_FOLDER, source={"configMap": source}, read_only=True
    )


def _live(inputs: ServerInputs) -> Mount:
    """Where servers are told what their run has saved last."""
    source = {"configMap": {"name": names.live_name(inputs.name)}}
    return Mount(name=LIVE_VOLUME, path=LIVE_FOLDER, source=source, read_only=True)


def _server(inputs: ServerInputs, mounts: list[Mount]) -> Manifest:
    """Whoever reaches the pod reaches this container; a vLLM server listens on a socket of the pod only."""
    get = {"path": "/healthz", "port": inputs.inside, "scheme": "HTTP"}
    ready = {**get, "path": "/readyz"}
    every = {"timeoutSeconds": 5, "periodSeconds": START_PERIOD_SECONDS}
    return {
        "name": SERVER,
        "image": inputs.worker_image,
        **pull_policy_of(inputs.runtime),
        "command": COMMAND,
        "env": _server_env(inputs),
        "ports": list(_ports(inputs)),
        "resources": merge_resources(inputs.layers) if inputs.vllm is None else SIDE_RESOURCES,
        "securityContext": CONTAINED,
        "startupProbe": {
            "httpGet": get,
            **every,
            "failureThreshold": START_SECONDS_MAX // START_PERIOD_SECONDS,
        },
        "readinessProbe": {"httpGet": ready, **every, "periodSeconds": 2, "failureThreshold": 3},
        "livenessProbe": {"httpGet": get, **every, "periodSeconds": 10, "failureThreshold": 6},
        "volumeMounts": [mount.mount() for mount in mounts],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _ports(inputs: ServerInputs) -> Iterator[Manifest]:
    yield {"name": inputs.inside, "containerPort": PORT, "protocol": "TCP"}
    if inputs.inside != names.PORT_CLIENTS:
        yield {"name": names.PORT_CLIENTS, "containerPort": TLS_PORT, "protocol": "TCP"}


def _server_env(inputs: ServerInputs) -> list[Manifest]:
    """The user's variables, then ours: of two of one name the last one holds."""
    folder = {"name": "ROLLOUT_ENGINE_DIR", "value": contract.ENGINE_FOLDER}
    return [
        *merge_env(inputs.layers),
        {"name": "HOME", "value": contract.HOME_FOLDER},
        NAMED,
        *(read_only_env if inputs.shares_cache else cache_env)(inputs.cache_root),
        *((folder,) if inputs.vllm is not None else ()),
        _order_variable(inputs),
    ]


def _order_variable(inputs: ServerInputs) -> Manifest:
    order = build_order(inputs).model_dump_json(by_alias=True, exclude_none=True)
    return {"name": VARIABLE, "value": literal(order)}


def literal(text: str) -> str:
    """The kubelet puts other variables in for ``$(NAME)``; ``$$`` is a dollar."""
    return text.replace("$", "$$")


def _init_containers(inputs: ServerInputs, mounts: list[Mount]) -> Iterator[Manifest]:
    if inputs.vllm is not None:
        needed = [
            mount for mount in mounts if mount.name in (ENGINE_VOLUME, "tmp") or mount.further
        ]
        yield {
            **_ours("place-plugin", inputs, contract.PLACE_PLUGIN),
            "volumeMounts": [mount.mount() for mount in needed],
        }
    if inputs.shares_cache:
        yield _place_model(inputs, mounts)
    if inputs.vllm is not None:
        yield _engine(inputs, mounts)


def _ours(name: str, inputs: ServerInputs, command: list[str]) -> Manifest:
    return {
        "name": name,
        "image": inputs.worker_image,
        **pull_policy_of(inputs.runtime),
        "command": command,
        "resources": SIDE_RESOURCES,
        "securityContext": CONTAINED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _place_model(inputs: ServerInputs, mounts: list[Mount]) -> Manifest:
    """The only container of the pod that writes into a cache of several: it brings one model and ends."""
    needed = [
        replace(one, read_only=False) if one.name == CACHE_VOLUME else one
        for one in mounts
        if one.name
        not in (ENGINE_VOLUME, KEYS_VOLUME, CANARY_VOLUME, TLS_VOLUME, LIVE_VOLUME, "shm")
    ]
    return {
        **_ours(MODELS, inputs, PLACE),
        "env": [
            *merge_env(inputs.layers),
            {"name": "HOME", "value": contract.HOME_FOLDER},
            NAMED,
            *cache_env(inputs.cache_root),
            _order_variable(inputs),
        ],
        "volumeMounts": [mount.mount() for mount in needed],
    }


def _engine(inputs: ServerInputs, mounts: list[Mount]) -> Manifest:
    """The stock vLLM image on a Unix socket: a container that starts before the gateway and ends after it has drained."""
    writable = (ENGINE_VOLUME, "tmp", "shm")
    seen = [mount for mount in mounts if mount.engine]
    return {
        "name": ENGINE,
        "image": inputs.image,
        **pull_policy_of(inputs.runtime),
        "restartPolicy": "Always",
        "command": contract.ENGINE_COMMAND,
        "env": [
            *(one for one in merge_env(inputs.layers) if "value" in one),
            {"name": "PYTHONPATH", "value": f"{contract.ENGINE_FOLDER}/plugin"},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a volume of the pod
            NAMED,
        ],
        "resources": merge_resources(inputs.layers),
        "securityContext": CONTAINED,
        "volumeMounts": [mount.mount(read_only=mount.name not in writable) for mount in seen],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
