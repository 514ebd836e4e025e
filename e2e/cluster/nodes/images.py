"""The two images every cluster has: the pod sandbox and a busybox; built once, from the machine's own packages."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from cluster.errors import BuildError
from cluster.nodes.oci import Image, write_archive, write_layer
from cluster.paths import HERE, build_cache

PAUSE = "rollout.test/pause:1"
BUSYBOX = "rollout.test/busybox:1"
FOLDERS = ("bin", "etc", "tmp", "root", "proc", "sys", "dev", "usr/bin", "var/run")
ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}


def folder() -> Path:
    """Where image archives are kept."""
    kept = build_cache() / "images"
    kept.mkdir(exist_ok=True)
    return kept


def ensure_base() -> list[Path]:
    """The archives of both images, built when missing.

    Raises:
        BuildError: no gcc, or no static busybox on this machine.
    """
    return [_ensure("pause-1", _write_pause), _ensure("busybox-1", _write_busybox)]


def _ensure(name: str, write: Callable[[Path, Path], None]) -> Path:
    target = folder() / f"{name}.tar"
    if not target.exists():
        with tempfile.TemporaryDirectory() as scratch:
            write(Path(scratch), target)
    return target


def _write_pause(scratch: Path, target: Path) -> None:
    root = scratch / "root"
    root.mkdir()
    compiler = ["gcc", "-static", "-Os", "-s", "-o", str(root / "pause"), str(HERE / "pause.c")]
    done = subprocess.run(compiler, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(compiler)}: {done.stderr}")
    layer = write_layer(root, scratch / "layer.tar")
    write_archive(Image(name=PAUSE, layers=[layer], command=["/pause"]), target)


def _write_busybox(scratch: Path, target: Path) -> None:
    binary = shutil.which("busybox")
    if binary is None:
        raise BuildError("no busybox on this machine: install busybox-static")
    root = scratch / "root"
    for name in FOLDERS:
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for name, text in ACCOUNTS.items():
        (root / name).write_text(text)
    shutil.copy(binary, root / "bin" / "busybox")
    applets = subprocess.run([binary, "--list"], capture_output=True, text=True, check=True)
    for applet in set(applets.stdout.split()) - {"busybox"}:
        (root / "bin" / applet).symlink_to("busybox")
    layer = write_layer(root, scratch / "layer.tar")
    write_archive(Image(name=BUSYBOX, layers=[layer], command=["sh"]), target)
