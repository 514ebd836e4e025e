"""A plugin whose container looks around and waits in the middle of a run, so that it can be killed in a call."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugin_image import give_plugin
from watched import Result, Stage, WatchedRun, read_result

SECONDS = 300.0
HELD = '''
"""Says what can be reached, and holds calls once so many things were asked for, until it is told to go on."""
import os, pathlib, time

GO = pathlib.Path("/tmp/go")
CLOSED = ["/var/run/secrets", "/etc/rollout", "/var/lib/rollout", "/var/cache/rollout", "/home/rollout", "/opt/rollout"]
GIVEN = {"ROLLOUT_PLUGIN_SOCKET", "HOME", "HOSTNAME", "PATH", "PYTHONPATH", "PWD", "OLDPWD", "LC_CTYPE"}
asked = 0


def writes(folder):
    try:
        pathlib.Path(folder, "mine").write_text("")
    except OSError:
        return False
    return True


def processes():
    for one in pathlib.Path("/proc").iterdir():
        if one.name.isdigit():
            yield (one / "cmdline").read_text()


def loot():
    yield from (name for name in os.environ if name not in GIVEN and not name.startswith("KUBERNETES_"))
    yield from (path for path in CLOSED if os.path.isdir(path) and os.listdir(path))
    yield from (name for name in os.listdir("/var/run/rollout") if name != "plugins")
    yield from (folder for folder in ("/", "/etc", "/opt/plugin") if writes(folder))
    yield from (line for line in processes() if "rollout.entrypoints" in line or "actor" in line)
    yield from (f"user {one}" for one in (os.getuid(), os.getgid()) if one <= 10001)


def hold(num, bound):
    global asked
    asked += num
    if asked > bound and not GO.exists():
        print("held", flush=True)
        while not GO.exists():
            time.sleep(0.05)


print("loot", list(loot()), flush=True)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a run came to whose plugin was killed, and what each of the plugin's processes wrote."""

    logs: tuple[str, str]
    run: dict[str, Any]
    result: Result
    weights: list[tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPlugin:
    """The plugin of a run with one actor, whose name is the run's."""

    run: WatchedRun

    @property
    def pod(self) -> str:
        return f"{self.run.name}-actors-0"

    @property
    def container(self) -> str:
        return f"plugin-{self.run.name}"

    def log(self) -> str:
        return self.run.kubectl.said(self.pod, self.container)

    def wait(self) -> str:
        """Until it holds a call; what it has written."""

        def held() -> str:
            text = self.log()
            return text if "held" in text else ""

        return self.run.until(held, "a call that the plugin holds", SECONDS)

    def let_go(self) -> None:
        self.run.kubectl("exec", self.pod, "-c", self.container, "--", "touch", "/tmp/go")

    def restarts(self) -> int:
        (pod,) = self.run.pods("actor")
        statuses = pod["status"]["initContainerStatuses"]
        return next(one["restartCount"] for one in statuses if one["name"] == self.container)

    def kill_and_end(self) -> Ended:
        """Killed while it holds a call, let go when its second process does; the run's end."""
        first = self.wait()
        self.run.kill(self.pod, self.container)
        self.run.until(lambda: self.restarts() == 1, "the plugin's second start", SECONDS)
        second = self.wait()
        self.let_go()
        self.run.wait_for_end(SECONDS)
        place = self.run.folder()
        return Ended(
            logs=(first, second),
            run=self.run.read(),
            result=read_result(place),
            weights=read_weights(place),
        )


def build_image(stage: Stage, folder: Path, files: Mapping[str, str]) -> str:
    """An image of the plugin with these files and `held.py`, on the nodes; `folder` is new and has its name."""
    folder.mkdir()
    for name, text in {**files, "held.py": HELD}.items():
        (folder / name).write_text(text)
    scratch = folder.parent / f"image-{folder.name}"
    scratch.mkdir()
    return give_plugin(stage.cluster, folder, scratch)


def contained(name: str, image: str, parameters: list[dict[str, str]]) -> dict[str, Any]:
    """As a reward or an environment names it."""
    resources = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
    container = {"name": name, "image": image, "resources": resources}
    return {"plugin": {"container": container, "parameters": parameters}}


def read_weights(place: Path) -> list[tuple[int, str]]:
    """Each step of a run's folder with the digest of the weights that it made."""
    with closing(sqlite3.connect(f"file:{place / 'ledger.db'}?mode=ro", uri=True)) as ledger:
        return ledger.execute("SELECT step, digest FROM versions ORDER BY step").fetchall()
