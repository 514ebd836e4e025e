"""Writes OCI image archives without a daemon: what containerd imports."""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
PLATFORM = {"architecture": "amd64", "os": "linux"}
DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image to write: its full name with a tag, its layers (tar files, lowest first), its defaults."""

    name: str
    layers: Sequence[Path]
    command: Sequence[str] = ()
    user: str = ""
    environment: Sequence[str] = field(default=(DEFAULT_PATH,))


def write_layer(root: Path, target: Path, *, keep_owners: bool = False) -> Path:
    """A layer of everything in `root`, equal for equal content; owned by root unless `keep_owners`."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        if not keep_owners:
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
        entry.mtime = 0
        return entry

    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as layer:
        for child in sorted(root.iterdir()):
            layer.add(child, arcname=child.name, filter=plain)
    return target


def write_archive(image: Image, target: Path) -> Path:
    """Write the image as one file that appears whole or not at all."""
    partial = target.with_suffix(".partial")
    with tarfile.open(partial, "w") as archive:
        layers = [_add_file(archive, layer) for layer in image.layers]
        config = _add_blob(archive, _build_config(image, layers), CONFIG_TYPE)
        manifest = _add_blob(archive, _build_manifest(config, layers), MANIFEST_TYPE)
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(archive, "index.json", json.dumps(_build_index(image, manifest)).encode())
    return partial.rename(target)


def _build_config(image: Image, layers: list[dict]) -> dict:
    settings = {
        "Env": list(image.environment),
        "Cmd": list(image.command),
        "User": image.user,
        "WorkingDir": "/",
    }
    digests = [layer["digest"] for layer in layers]
    history = [{"created_by": "rollout test cluster"} for _ in layers]
    layered = {"rootfs": {"type": "layers", "diff_ids": digests}, "history": history}
    return PLATFORM | {"config": settings} | layered


def _build_manifest(config: dict, layers: list[dict]) -> dict:
    return {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": layers}


def _build_index(image: Image, manifest: dict) -> dict:
    names = {
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name.rsplit(":", 1)[-1],
    }
    entry = manifest | {"annotations": names, "platform": PLATFORM}
    return {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]}


def _add_file(archive: tarfile.TarFile, path: Path) -> dict:
    with path.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    archive.add(path, arcname=f"blobs/sha256/{digest}")
    return _descriptor(LAYER_TYPE, digest, path.stat().st_size)


def _add_blob(archive: tarfile.TarFile, content: dict, media_type: str) -> dict:
    data = json.dumps(content).encode()
    digest = hashlib.sha256(data).hexdigest()
    _add(archive, f"blobs/sha256/{digest}", data)
    return _descriptor(media_type, digest, len(data))


def _descriptor(media_type: str, digest: str, size_bytes: int) -> dict:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size_bytes}


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    archive.addfile(entry, io.BytesIO(data))
