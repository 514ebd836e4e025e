"""Volumes of a run's pods and where they are mounted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rollout_api import names
from rollout_api.checks.environment.plugins import find_containers
from rollout_api.v1alpha1.inference.endpoint import ApiKey
from rollout_api.v1alpha1.runtime import ModelCache, Volume
from rollout_operator.run.render import contract
from rollout_operator.run.render.inputs import CACHE_VOLUME, PLUGIN, Inputs, Manifest
from rollout_operator.run.render.layers import plain
from rollout_operator.run.render.pod_settings import shared_memory

LEDGER_VOLUME = "ledger"
KEYS_VOLUME = "api-keys"
SOCKET_SIZE, WHEEL_SIZE = "1Mi", "3Gi"
CLAIM = "pvc://"
"""Scheme of a place in the volume of a run."""
READABLE = 0o440
"""By the pod's own user and its group, which volumes belong to (``fsGroup``); by nobody else's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A volume, where it appears, and whether the engine sees it too. ``source`` None: claimed.

    ``further``: the platform's, from its runtime; every container of the pod sees it, but the one for data code no
    credentials. ``rows``: how that container sees it (``r``, ``rw``, or not at all). ``main``: whether the role's does.
    ``plugin``: the plugin whose container sees it, and may write there.
    """

    name: str
    path: str
    source: Manifest | None
    read_only: bool = False
    sub_path: str = ""
    engine: bool = False
    further: bool = False
    rows: Literal["", "r", "rw"] = ""
    main: bool = True
    plugin: str = ""

    def volume(self) -> Manifest:
        """The pod's entry."""
        assert self.source is not None
        return {"name": self.name, **self.source}

    def mount(self, *, read_only: bool = False) -> Manifest:
        """The container's entry."""
        entry: Manifest = {"name": self.name, "mountPath": self.path}
        if self.read_only or read_only:
            entry["readOnly"] = True
        if self.sub_path:
            entry["subPath"] = self.sub_path
        return entry


def claim_template_name(uid: str) -> str:
    """Name of the coordinator's claim: another run of the same name gets another volume."""
    return f"{LEDGER_VOLUME}-{uid[:8]}"


def claim_name(run: str, uid: str) -> str:
    """The coordinator's claim of a run, as its StatefulSet names it."""
    return f"{claim_template_name(uid)}-{names.workload_name(run, 'coordinator')}-0"


def build_mounts(inputs: Inputs, role: names.Role, configuration: str) -> list[Mount]:
    """Everything a role's pods mount."""
    mounts = [
        Mount(
            name="order",
            path=contract.ORDER_FOLDER,
            source=_config_map(configuration, contract.ORDER_FILE),
            read_only=True,
        ),
        Mount(
            name="ca",
            path=contract.CA_FOLDER,
            source=secret_files(names.certificate_name(inputs.name), contract.AUTHORITY),
            read_only=True,
        ),
        Mount(
            name="token",
            path=contract.TOKEN_FOLDER,
            source=_token(contract.audience(inputs.uid)),
            read_only=True,
        ),
        _run_folder(inputs, role),
        Mount(name="tmp", path="/tmp", source={"emptyDir": {}}, engine=True),  # noqa: S108 - a volume of the pod
        Mount(name="home", path=contract.HOME_FOLDER, source={"emptyDir": {}}),
        Mount(
            name=CACHE_VOLUME,
            path=contract.CACHE_FOLDER,
            source=cache_source(inputs.runtime.model_cache),
            read_only=inputs.reads_models(role),
            engine=True,
            rows="r",
        ),
        _shm(inputs, role),
    ]
    if role == "coordinator":
        mounts += _coordinator(inputs)
    if role == "coordinator" and inputs.spec.serve is not None:
        mounts.append(keys_mount(inputs.spec.serve.api_keys))
    if inputs.has_server(role):
        folder = {"emptyDir": {"medium": "Memory"}}
        mounts.append(Mount(name="engine", path=contract.ENGINE_FOLDER, source=folder, engine=True))
    if role == "actor":
        mounts += _plugins(inputs)
    apart = role == "coordinator" and inputs.spec.brings_data_code
    code = [replace(one, main=not apart) for one in _code(inputs)]
    mounts += [*code, *map(further, inputs.template(role).volumes)]
    return [*mounts, *_rows(inputs)] if apart else mounts


def _rows(inputs: Inputs) -> Iterator[Mount]:
    """What the container for data code shares with the coordinator's, and its own scratch space."""
    socket = {"emptyDir": {"sizeLimit": SOCKET_SIZE}}
    yield Mount(name="rows", path=contract.ROWS_FOLDER, source=socket, rows="rw")
    yield Mount(name="rows-tmp", path="/tmp", source={"emptyDir": {}}, rows="rw", main=False)  # noqa: S108 - a volume of the pod
    if inputs.spec.code is not None and inputs.spec.code.wheel is not None:
        wheel = {"emptyDir": {"sizeLimit": WHEEL_SIZE}}
        yield Mount(name="wheel", path=contract.WHEEL_FOLDER, source=wheel, rows="r")


def _plugins(inputs: Inputs) -> Iterator[Mount]:
    """The folder of each plugin's socket, which the actor only reads, and the plugin's scratch space."""
    for plugin in find_containers(inputs.spec):
        assert plugin.container is not None
        name, folder = plugin.container.name, plugin.container.folder
        socket = {"emptyDir": {"sizeLimit": SOCKET_SIZE}}
        yield Mount(name=f"{PLUGIN}{name}", path=folder, source=socket, read_only=True, plugin=name)
        scratch = {"emptyDir": {}}
        yield Mount(name=f"scratch-{name}", path="/tmp", source=scratch, main=False, plugin=name)  # noqa: S108 - a volume of the pod


def _run_folder(inputs: Inputs, role: names.Role) -> Mount:
    if role == "coordinator" and inputs.uses_sqlite:
        name = claim_template_name(inputs.uid)
        return Mount(name=name, path=contract.RUN_FOLDER, source=None)
    return Mount(name="work", path=contract.RUN_FOLDER, source={"emptyDir": {}}, engine=True)


def _coordinator(inputs: Inputs) -> list[Mount]:
    projected = _token("", authority=True)
    return [
        Mount(
            name="tls",
            path=contract.TLS_FOLDER,
            source=secret_files(
                names.certificate_name(inputs.name), contract.CERTIFICATE, contract.PRIVATE_KEY
            ),
            read_only=True,
        ),
        Mount(
            name="keys",
            path=contract.KEYS_FOLDER,
            source=_config_map(names.keys_name(inputs.name), contract.KEYS_FILE),
            read_only=True,
        ),
        Mount(name="api", path=contract.API_FOLDER, source=projected, read_only=True),
        *_sources(inputs),
    ]


def _sources(inputs: Inputs) -> Iterator[Mount]:
    """Volumes of the runs that this one starts from."""
    for index, claim in enumerate(inputs.sources):
        yield Mount(
            name=f"source-{index}",
            path=f"{contract.SOURCES_FOLDER}/{claim}",
            source={"persistentVolumeClaim": {"claimName": claim, "readOnly": True}},
            read_only=True,
        )


def keys_mount(keys: Sequence[ApiKey]) -> Mount:
    """Clients' keys: one file a key, which the kubelet replaces when its Secret changes."""
    sources = [
        {
            "secret": {
                "name": one.secret_key_ref.name,
                "items": [{"key": one.secret_key_ref.key, "path": one.name}],
            }
        }
        for one in keys
    ]
    projected = {"projected": {"sources": sources, "defaultMode": READABLE}}
    return Mount(name=KEYS_VOLUME, path=contract.API_KEYS_FOLDER, source=projected, read_only=True)


def _code(inputs: Inputs) -> list[Mount]:
    code = inputs.spec.code
    if code is None:
        return []
    if code.config_map is not None:
        source: Manifest = {"configMap": {"name": code.config_map.name, "defaultMode": READABLE}}
        return [
            Mount(name="code", path=contract.CODE_FOLDER, source=source, read_only=True, rows="r")
        ]
    if code.image is not None:
        return [
            Mount(
                name="code",
                path=contract.CODE_FOLDER,
                source={"image": {"reference": code.image.reference}},
                read_only=True,
                sub_path=code.image.path.strip("/"),
                rows="r",
            )
        ]
    return []


def further(volume: Volume) -> Mount:
    """A volume of the platform's, from its runtime."""
    source = {
        name: value
        for name, value in plain(volume).items()
        if name not in ("name", "mountPath", "readOnly")
    }
    for kind in {"secret", "configMap"} & source.keys():
        source[kind] = {**source[kind], "defaultMode": READABLE}
    if volume.empty_dir is not None:
        source["emptyDir"] = plain(volume.empty_dir) or {}
    return Mount(
        name=f"x-{volume.name}"[:63],
        path=volume.mount_path,
        source=source,
        read_only=volume.read_only,
        engine=True,
        further=True,
        rows="" if volume.secret is not None or volume.csi is not None else "r",
    )


def cache_source(cache: ModelCache | None) -> Manifest:
    """Where models are kept: the platform's, or a folder that ends with the pod."""
    if cache is None or cache.empty_dir is not None:
        return {"emptyDir": (plain(cache.empty_dir) or {}) if cache and cache.empty_dir else {}}
    return plain(cache)


def _shm(inputs: Inputs, role: names.Role) -> Mount:
    return shm_mount(shared_memory(inputs, role))


def shm_mount(size: str | None) -> Mount:
    """``/dev/shm``; None is the node's own bound."""
    source = {"medium": "Memory"} | ({"sizeLimit": size} if size else {})
    return Mount(name="shm", path="/dev/shm", source={"emptyDir": source}, engine=True)  # noqa: S108 - a volume of the pod


def _config_map(name: str, key: str) -> Manifest:
    items = [{"key": key, "path": key}]
    return {"configMap": {"name": name, "items": items, "defaultMode": READABLE}}


def secret_files(name: str, *keys: str) -> Manifest:
    """A volume with these files of a Secret."""
    items = [{"key": key, "path": key} for key in keys]
    return {"secret": {"secretName": name, "items": items, "defaultMode": READABLE}}


def _token(audience: str, *, authority: bool = False) -> Manifest:
    token: Manifest = {"path": "token", "expirationSeconds": contract.TOKEN_SECONDS}
    if audience:
        token["audience"] = audience
    sources: list[Manifest] = [{"serviceAccountToken": token}]
    if authority:
        items = [{"key": "ca.crt", "path": "ca.crt"}]
        sources.append({"configMap": {"name": "kube-root-ca.crt", "items": items}})
    return {"projected": {"sources": sources, "defaultMode": READABLE}}
