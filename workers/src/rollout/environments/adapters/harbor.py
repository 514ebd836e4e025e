"""Folders of tasks in Harbor's form (https://harborframework.com), played unmodified by an agent that owns its loop.

``{python: {module: rollout.environments.adapters.harbor, className: Harbor, parameters: [{name: tasks, value: tasks},
{name: command, value: python /tmp/.agent/agent.py}, {name: files, value: agent.py}, {name: instead, value: python:3.13-slim}]}}``.
Each task is a row, its instruction the agent's standard input; ``tests/test.sh`` judges as ``/logs/verifier/reward.txt``
or ``reward.json`` says, and one that writes neither has judged nothing. No image is built: this machine's own system,
in a cluster the one image of the sandbox pods, takes the place of those that the user names; every other is refused.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

from rollout.environments.adapters.harbor_files import (
    HarborHere,
    HarborTask,
    find_tasks,
    read_task,
)
from rollout.environments.adapters.verifiers import split_of
from rollout.environments.agents.environment import AgentEnv
from rollout.environments.agents.program import AgentProgram, VerifierProgram
from rollout.errors import DataError, SpecError
from rollout.tools.sandbox.chosen import memory_of_pods
from rollout.tools.server_files import read_files
from rollout.types import Row

JUDGE = ("/bin/sh", "-c", "chmod +x /tests/test.sh && exec /tests/test.sh")


class Harbor:
    """Builds the episodes of the tasks below ``tasks``, and brings them as rows.

    ``command``: the agent, as words of a shell; ``files`` of the run's code lie in ``/tmp/.agent``, names between commas.
    ``instead``: images, between commas, whose place this machine's system takes, or that of the pods, which is ``image``
    where that is said. ``offline``, ``ran``: ``true`` where the tasks need no network, and where the system has what RUN
    lines make. ``only``: these tasks, by name.
    """

    starts_programs = True
    """An episode's prompt is what its agent asks: ``plan`` does not look at it."""

    def __init__(  # noqa: PLR0913, PLR0917 - parameters of a manifest, by name
        self,
        tasks: str,
        command: str,
        files: str = "",
        instead: str = "",
        offline: str = "false",
        ran: str = "false",
        only: str = "",
        turns: str = "32",
        image: str = "",
    ) -> None:
        here = HarborHere(
            images=frozenset(_listed(instead)),
            image=image,
            offline=_flag("offline", offline),
            ran=_flag("ran", ran),
        )
        if not turns.isdigit() or not 1 <= int(turns) <= 64:
            raise SpecError(f"harbor: turns must be a whole number of 1 to 64, got {turns!r}")
        self._turns = int(turns)
        self._command = _split("command", command)
        folders = [Path(one) for one in sys.path if one]
        self._beside = read_files(_listed(files), folders, "harbor")
        found = _chosen(find_tasks(_place(tasks, folders)), _listed(only))
        self._tasks = {folder.name: read_task(folder, here) for folder in found}

    def rows(self, split: str) -> list[dict[str, Any]]:
        """The tasks that fall into a split, by their names."""
        return [
            {"prompt": task.instruction, "task": name, "digest": digest_of(task)}
            for name, task in self._tasks.items()
            if split_of(name) == split
        ]

    def build(self, row: Row) -> AgentEnv:
        """The episode of one row. Raises DataError for a task that is another than when the rows were read."""
        task = self._tasks.get(str(row.get("task")))
        if task is None or digest_of(task) != row.get("digest"):
            raise DataError(
                f"harbor: task {row.get('task')} is another one than when the rows were read, or gone"
            )
        _require_memory(task)
        return AgentEnv(self._program(task), row)

    def _program(self, task: HarborTask) -> AgentProgram:
        verifier = VerifierProgram(
            command=JUDGE,
            files=task.tests,
            seconds=task.verifier_seconds,
            environment=task.verifier_environment,
            by_file=True,
        )
        return AgentProgram(
            command=self._command,
            files=task.files,
            beside=self._beside,
            verifier=verifier,
            max_turns=self._turns,
            seconds=task.agent_seconds,
            environment=task.environment,
            memory_bytes=task.memory_bytes,
            disk_bytes=task.memory_bytes // 2,
        )


def _require_memory(task: HarborTask) -> None:
    """Raise DataError for one that asks for more than a sandbox pod has."""
    there = memory_of_pods()
    if there is not None and task.memory_is_asked and task.memory_bytes > there:
        raise DataError(
            f"harbor: task {task.name}: it asks for {task.memory_bytes >> 20} MiB, and programs of a sandbox pod may use"
            f" {there >> 20}: let the platform raise the runtime's sandbox.memory, or leave the task out with `only`"
        )


def digest_of(task: HarborTask) -> str:
    """Of everything that an episode of it is made from."""
    told = blake3(repr((task.name, task.instruction, task.environment)).encode())
    told.update(
        repr((task.verifier_environment, task.agent_seconds, task.verifier_seconds)).encode()
    )
    for name, data in (*task.files, *task.tests):
        told.update(json.dumps([name, len(data)]).encode())
        told.update(data)
    return f"blake3:{told.hexdigest()}"


def _place(tasks: str, folders: Sequence[Path]) -> Path:
    """Absolute, or where a module would be found."""
    tried = [Path(tasks)] if Path(tasks).is_absolute() else [one / tasks for one in folders]
    found = next((one for one in tried if one.is_dir()), None)
    if found is None:
        raise SpecError(
            f"harbor: no folder {tasks!r}, neither as an absolute path nor below the run's code (spec.code)"
        )
    return found


def _chosen(found: Sequence[Path], only: Sequence[str]) -> list[Path]:
    names = {folder.name for folder in found}
    if unknown := [name for name in only if name not in names]:
        raise SpecError(
            f"harbor: only: no task {unknown[0]!r}; there are {', '.join(sorted(names))}"
        )
    return [folder for folder in found if not only or folder.name in only]


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise SpecError(f"harbor: {name} must be true or false, got {text!r}")
    return text == "true"


def _split(name: str, text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise SpecError(f"harbor: {name}: {error}: {text!r:.60}") from error
    if not words:
        raise SpecError(f"harbor: {name} is empty: say what is run for each episode")
    return words
