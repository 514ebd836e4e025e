"""CNCF Distribution, the registry, as a process on loopback, and a release of ours in it."""

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import build
from cluster.control.ports import LOOPBACK, find_free_port
from cluster.errors import BuildError
from cluster.skips import or_skip
from release.registry.client import Registry
from release.registry.push import push
from release.verify import read_contents

CONFIG = """version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/blobs}}}}
http: {{addr: "{address}"}}
"""
LATE_SECONDS_MAX = 120.0


def built(name: str) -> str:
    """The path of a program of the test cluster; skips where it cannot be built."""
    with or_skip(BuildError):
        build.ensure((name,))
    return str(build.path(name))


@contextmanager
def distributing(folder: Path) -> Iterator[str]:
    """The registry for a block, which keeps what it is given below the folder: its address."""
    binary, address = built("registry"), f"{LOOPBACK}:{find_free_port()}"
    config = folder / "config.yml"
    config.write_text(CONFIG.format(folder=folder, address=address))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([binary, "serve", str(config)], stdout=log, stderr=log)
    try:
        _wait_for(f"http://{address}/v2/", folder / "log")
        yield address
    finally:
        process.terminate()
        process.wait(60)


def push_release(folder: Path, place: str) -> int:
    """A release to a registry, without anybody's credentials; how many steps it took."""
    with Registry.open(place, {"HOME": "/nonexistent"}) as opened:
        return len(list(push(folder, read_contents(folder), opened)))


def _wait_for(url: str, log: Path) -> None:
    end = time.monotonic() + LATE_SECONDS_MAX
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=30):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(log.read_text())
