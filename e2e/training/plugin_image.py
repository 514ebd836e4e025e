"""A plugin in Python as an image of its own, on the nodes under its digest, as a registry would give it."""

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from cluster import build
from cluster.local import LocalCluster
from cluster.nodes import containers
from cluster.nodes.oci import Image, write_archive, write_layer
from cluster.paths import REPOSITORY

PLACE = "opt/plugin"
SOURCES = ("workers/src/rollout", "crds/src/rollout_api")
LOADED = """
import pathlib, sys
import rollout.plugins.serving
files = (getattr(one, "__file__", None) for one in list(sys.modules.values()))
places = {pathlib.Path(one) for one in files if one and "site-packages" in one}
print("\\n".join({str(p) for one in places for p in (one, *one.parents) if p.parent.name == "site-packages"}))
"""
"""The packages that serving needs, of this machine's environment."""


def give_plugin(cluster: LocalCluster, folder: Path, scratch: Path) -> str:
    """An image of the plugin in `folder` for every node; its name with its digest."""
    name = f"rollout.test/{folder.name}"
    image = Image(
        name=f"{name}:1",
        layers=[_write_base_layer(scratch), _write_own_layer(folder, scratch)],
        command=["sh", "-c", f"cd /{PLACE}/plugin && exec python3 -u plugin.py"],
        environment=["PATH=/usr/bin:/bin", f"PYTHONPATH=/{PLACE}/packages"],
    )
    archive = write_archive(image, scratch / f"{folder.name}.tar")
    with tarfile.open(archive) as written:
        digest = _read_json(written, "index.json")["manifests"][0]["digest"]
    cluster.import_image(archive)
    tag = (str(build.path("ctr")), "-n", "k8s.io", "images", "tag", "--force")
    for node in cluster.nodes:
        node.run(*tag, f"{name}:1", f"{name}@{digest}")
    return f"{name}@{digest}"


def _write_base_layer(scratch: Path) -> Path:
    """The Debian below the project's images, which has an interpreter of this version; the nodes know the layer."""
    with tarfile.open(containers.ensure_base()) as base:
        index = _read_json(base, "index.json")
        (layer,) = _read_json(base, _blob(index["manifests"][0]))["layers"]
        base.extract(_blob(layer), scratch, filter="data")
    return scratch / _blob(layer)


def _write_own_layer(folder: Path, scratch: Path) -> Path:
    root = scratch / "own"
    packages = root / PLACE / "packages"
    packages.mkdir(parents=True)
    command = [sys.executable, "-c", LOADED]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    for one in (*map(Path, loaded), *(REPOSITORY / source for source in SOURCES)):
        if one.is_dir():
            _copy(one, packages / one.name)
        else:
            shutil.copy(one, packages)
    _copy(folder, root / PLACE / "plugin")
    return write_layer(root, scratch / "own.layer")


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


def _read_json(archive: tarfile.TarFile, name: str) -> Any:
    found = archive.extractfile(name)
    assert found is not None, name
    return json.load(found)


def _blob(entry: dict[str, Any]) -> str:
    algorithm, _, digits = entry["digest"].partition(":")
    return f"blobs/{algorithm}/{digits}"
