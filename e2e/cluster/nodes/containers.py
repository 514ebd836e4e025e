"""The project's own images for real nodes, built by buildah from the Containerfile, without a registry or a daemon.

The base is a Debian made by debootstrap. The worker image stays bare in tests: the environment of this machine is
mounted read-only from the node, since it is many gigabytes and the same.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cluster.errors import BuildError
from cluster.nodes import images
from cluster.nodes.oci import Image, write_archive, write_layer
from cluster.paths import REPOSITORY, build_cache, locked

SUITE = "bookworm"
PACKAGES = ("ca-certificates", "libgomp1", "libnuma1", "python3-venv")
BASE = "rollout.test/base:1"
WORKER = "rollout.test/worker:1"
OPERATOR = "rollout.test/operator:1"
ENVIRONMENT = "/opt/rollout"
"""Where the project's images look for their packages."""
CERTIFICATES = "/etc/ssl/certs"
"""What this machine trusts, its builds trust too."""
LEFT_BESIDE = re.compile(r"__pycache__|\.egg-info|(^|/)build/")
SWEPT = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")


def ensure_worker() -> Path:
    """The archive of a worker image without packages: mount `build_environment_mounts` into it."""
    return _ensure_built("bare", WORKER)


def ensure_operator(source: Path = REPOSITORY, name: str = OPERATOR) -> Path:
    """The archive of the operator image, packages installed; of another version where `source` holds one."""
    return _ensure_built("operator", name, source)


def build_environment_mounts() -> tuple[list[dict], list[dict]]:
    """Volumes and mounts that show a pod this machine's environment, read-only.

    At its own paths, which scripts and editable installs name, and where the worker image looks for it.
    """
    folders = dict.fromkeys((sys.base_prefix, sys.prefix, str(REPOSITORY)))
    outer = [one for one in folders if not any(Path(one).parent.is_relative_to(o) for o in folders)]
    volumes = [
        {"name": f"environment-{index}", "hostPath": {"path": folder, "type": "Directory"}}
        for index, folder in enumerate(outer)
    ]
    mounts = [
        {"name": volume["name"], "mountPath": volume["hostPath"]["path"], "readOnly": True}
        for volume in volumes
    ]
    environment = {"name": "environment", "hostPath": {"path": sys.prefix, "type": "Directory"}}
    mount = {"name": "environment", "mountPath": ENVIRONMENT, "readOnly": True}
    return [*volumes, environment], [*mounts, mount]


def _ensure_built(target: str, name: str, source: Path = REPOSITORY) -> Path:
    archive = images.folder() / f"{target}-{_digest(target, name, source)}.tar"
    with locked(f"image-{target}"):
        if not archive.exists():
            base = ensure_base()
            with tempfile.TemporaryDirectory(dir=build_cache()) as scratch:
                _build(target, name, source, base, archive, Path(scratch))
    return archive


def _build(target: str, name: str, source: Path, base: Path, archive: Path, scratch: Path) -> None:
    store = ["--storage-driver", "vfs", "--root", f"{scratch}/root", "--runroot", f"{scratch}/run"]
    partial = archive.with_suffix(".partial")
    pulled = _run("buildah", *store, "pull", "-q", f"oci-archive:{base}").strip()
    pip = scratch / "pip.conf"
    pip.write_text(f"[global]\ncert = {CERTIFICATES}/ca-certificates.crt\n")
    _run(
        *("buildah", *store, "bud", "-v", f"{CERTIFICATES}:{CERTIFICATES}:ro"),
        *("-v", f"{pip}:/etc/pip.conf:ro"),
        *("--isolation", "chroot", "--pull-never", "--target", target),
        *("--build-arg", f"BASE={pulled}", "-f", str(REPOSITORY / "Containerfile")),
        *("-t", name, str(source)),
    )
    _run("buildah", *store, "push", "-q", name, f"oci-archive:{partial}:{name}")
    partial.rename(archive)


def ensure_base() -> Path:
    """The archive of the Debian below them."""
    digest = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12]
    archive = images.folder() / f"base-{SUITE}-{digest}.tar"
    with locked("image-base"):
        if not archive.exists():
            _write_base(archive)
    return archive


def _write_base(archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=build_cache()) as scratch:
        root = Path(scratch) / "root"
        include = f"--include={','.join(PACKAGES)}"
        _run("debootstrap", "--variant=minbase", include, SUITE, str(root))
        for folder in SWEPT:
            shutil.rmtree(root / folder, ignore_errors=True)
        # the machine's interpreter may be mounted below a home that only its owner may enter
        (root / "root").chmod(0o711)
        layer = write_layer(root, Path(scratch) / "layer.tar", keep_owners=True)
        write_archive(Image(name=BASE, layers=[layer], command=["bash"]), archive)


def _digest(target: str, name: str, source: Path) -> str:
    """Of all that goes into the image."""
    hashed = hashlib.sha256((REPOSITORY / "Containerfile").read_bytes() + name.encode())
    if target != "bare":
        for path in [
            source / "constraints.hashes.txt",
            source / "bootstrap.hashes.txt",
            *_files(source / "crds"),
            *_files(source / "operator"),
        ]:
            hashed.update(f"{path.relative_to(source)}\n".encode() + path.read_bytes())
    return hashed.hexdigest()[:12]


def _files(folder: Path) -> list[Path]:
    """The files of a distribution, without what tools leave beside them."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if not LEFT_BESIDE.search(str(path.relative_to(folder)))]


def _run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is not on this machine: install it") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout
