"""What a pod does: it prepares its configuration, does its role's work in a child, says how that ended, and idles."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from rollout.pods.child import run_child
from rollout.pods.node import POD_NAME, find_node, ordinal_of, work_in_group
from rollout.pods.orders import config_path, read_order
from rollout.pods.publishing import publishing
from rollout.pods.telling import Telling, build_telling
from rollout.runs.environment import RUN_DIR_VARIABLE, thread_env, user_env
from rollout_api.logs import name_process
from rollout_api.v1alpha1.common import EnvRole
from rollout_api.worker import WorkerOrder

log = logging.getLogger(__name__)


def run_role(role: str, path: Path, told: threading.Event) -> None:
    """Be one pod until ``told`` to go. Ends by SystemExit where the exit code says something."""
    order = read_order(path)
    name_process(run=order.run.name, worker=_name_worker(role))
    environment = child_environment(order, role)
    name = environment.get(POD_NAME, role)
    prepare = (role, "--order", str(path))
    telling = build_telling(role, name, order, environment)
    if order.spec.serve is not None:
        _serve(path, environment, told, telling)
        return
    code = run_child("rollout.entrypoints.prepare", prepare, environment, told, telling=telling)
    if told.is_set():
        return
    if code:
        raise SystemExit(code)
    work(role, order, environment, told, build_telling(role, name, order, environment))


def _name_worker(role: str) -> str:
    """As the process that does the work is called."""
    return f"actor-{ordinal_of(os.environ)}" if role == "actor" else role


def work(
    role: str,
    order: WorkerOrder,
    environment: Mapping[str, str],
    told: threading.Event,
    telling: Telling | None = None,
) -> None:
    """Do the role's work, then idle."""
    if role == "learner":
        work_in_group(order, find_node(os.environ), environment, told, telling)
    elif role == "coordinator" and order.spec.train is None:
        _coordinate_and_publish(order, environment, told, telling)
    else:
        index = ("--index", str(ordinal_of(os.environ))) if role == "actor" else ()
        arguments = ("--config", str(config_path(order)), *index)
        module = f"rollout.entrypoints.{role}"
        code = run_child(module, arguments, environment, told, telling=telling)
        if code and not told.is_set():
            raise SystemExit(code)
    log.info("done: waiting to be told to go")
    told.wait()


def _serve(
    path: Path, environment: Mapping[str, str], told: threading.Event, telling: Telling
) -> None:
    """Of a training service: it finds its base itself, and has neither a ledger nor workers."""
    arguments = ("--order", str(path))
    module = "rollout.entrypoints.serving.training"
    code = run_child(module, arguments, environment, told, telling=telling)
    if code and not told.is_set():
        raise SystemExit(code)


def _coordinate_and_publish(
    order: WorkerOrder,
    environment: Mapping[str, str],
    told: threading.Event,
    telling: Telling | None,
) -> None:
    """Of a run without a learner: the coordinator, and beside it whoever gives the run its version."""
    config, retries = config_path(order), order.spec.limits.retries
    with publishing(config, environment, retries, told) as made:
        arguments = ("--config", str(config))
        module = "rollout.entrypoints.coordinator"
        code = run_child(module, arguments, environment, told, made.over, telling)
    if code and not told.is_set():
        raise SystemExit(made.code or code)


def child_environment(order: WorkerOrder, role: str) -> dict[str, str]:
    """Ours, with what the run's spec and order ask for; the coordinator gets none of the author's variables."""
    roles: dict[str, EnvRole] = {"actor": "Actor", "learner": "Learner"}
    given = user_env(order.spec, roles[role]) if role in roles else {}
    place = {RUN_DIR_VARIABLE: order.layout.run_dir}
    return {**os.environ, **given, **thread_env(order.threads), **place}
