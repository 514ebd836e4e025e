"""A server in a container of its own, beside the actor in one pod: it is asked for through a shared folder.

``rollout_vllm.launch`` runs there and does what ``start.json`` says. The kubelet restarts it when it ends by
itself; an actor that comes back finds the server still running and goes on with it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from rollout.common.atomic_files import replace_text
from rollout.engines.vllm.command import VllmSettings, build_arguments, build_environment
from rollout.engines.vllm.serving_command import (
    ServingSettings,
    build_serving_arguments,
    build_serving_environment,
)
from rollout_vllm.launch import START_FILE, Start, read_start

PRIVATE = 0o700


class AttachedProcess:
    """Stands for a server whose processes we cannot see; what it writes is in its container's log."""

    exit_code: int | None = None
    pid = 0

    def __init__(self, folder: Path) -> None:
        self.log_path = folder

    def stop(self) -> None:
        """Nothing: a new ``start.json``, or the end of the pod, ends it."""

    def log_tail(self) -> str:
        """Where to look instead."""
        return "the log of this pod's container `engine`"


def ask_for_server(settings: VllmSettings, folder: Path, *, fresh: bool) -> Path:
    """Say what server shall run; the folder that it works in. ``fresh``: not the one that runs now."""
    before = read_start(folder)
    if before is not None and not fresh and before == _plan(settings, folder, before.incarnation):
        return _work_dir(folder, before.incarnation)
    wanted = _plan(settings, folder, 1 if before is None else before.incarnation + 1)
    work_dir = _work_dir(folder, wanted.incarnation)
    for old in folder.glob("server-*"):
        shutil.rmtree(old, ignore_errors=True)
    work_dir.mkdir(PRIVATE, parents=True)
    replace_text(folder / START_FILE, json.dumps(asdict(wanted)))
    return work_dir


def ask_for_gateways_server(settings: ServingSettings, folder: Path) -> None:
    """Say what server shall run behind a gateway, for as long as the pod lives; it works in ``server_folder``."""
    work_dir = server_folder(folder)
    work_dir.mkdir(PRIVATE, parents=True, exist_ok=True)
    wanted = Start(
        incarnation=1,
        arguments=build_serving_arguments(settings, work_dir),
        environment=build_serving_environment(settings, work_dir),
    )
    replace_text(folder / START_FILE, json.dumps(asdict(wanted)))


def server_folder(folder: Path) -> Path:
    """Where the one server of a gateway's pod works."""
    return _work_dir(folder, 1)


def _work_dir(folder: Path, incarnation: int) -> Path:
    return folder / f"server-{incarnation}"


def _plan(settings: VllmSettings, folder: Path, incarnation: int) -> Start:
    work_dir = _work_dir(folder, incarnation)
    return Start(
        incarnation=incarnation,
        arguments=build_arguments(settings, work_dir),
        environment=build_environment(settings, work_dir),
    )
