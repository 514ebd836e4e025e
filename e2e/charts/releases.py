"""Releases of the charts on a cluster: Helm with its kubeconfig, operators as their accounts, runs and their children."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

import charts
from cluster.control.ports import LOOPBACK, find_free_port
from cluster.errors import CannotRunHereError
from cluster.kubectl import Kubectl
from cluster.nodes import addons
from cluster.paths import REPOSITORY
from rollout_operator.kube.config import find_connection, open_session
from runs import build_run
from waiting import wait_until
from webhooks import fetch, process, write_kubeconfig

RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
BEFORE = "ROLLOUT_E2E_BEFORE"
"""A commit or tag to upgrade from; the one before the charts last changed where it is not set."""
PINS = ("constraints.hashes.txt", "bootstrap.hashes.txt", "pyproject.toml")
CHILDREN = (
    "statefulsets", "services", "configmaps", "secrets", "serviceaccounts", "roles", "rolebindings",
    "networkpolicies", "poddisruptionbudgets", "pods",
)  # fmt: skip
LISTED = "rollout.dev/children"
"""On the record of an attempt: the operator's own list of what it makes."""
LOOK_SECONDS = 1.0
State = dict[tuple[str, str], tuple[str, str]]


def helm(kubectl: Kubectl, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Helm in the charts' namespace; a failure is the test's."""
    namespace = kubectl.namespace if kubectl.namespace != "default" else charts.NAMESPACE
    where = ("--kubeconfig", str(kubectl.kubeconfig), "--namespace", namespace)
    done = charts.helm(*arguments, *where)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def prepare(kubectl: Kubectl, namespace: str = charts.NAMESPACE) -> Kubectl:
    """Make a namespace that takes restricted pods only; kubectl in it."""
    kubectl("create", "namespace", namespace)
    kubectl("label", "namespace", namespace, RESTRICTED)
    return replace(kubectl, namespace=namespace)


def inside(kubectl: Kubectl, namespace: str = charts.NAMESPACE) -> Kubectl:
    """kubectl in a namespace that is there."""
    return replace(kubectl, namespace=namespace)


def write_values(folder: Path, values: dict[str, Any]) -> str:
    """A file of values for Helm."""
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


def open_door(kubectl: Kubectl) -> None:
    """Runs may be made though nobody answers reviews: fake pods do not."""
    _set_policy(kubectl, "Ignore")
    document = json.dumps(build_run("probe"))
    probe = ("create", "--dry-run=server", "-f", "-")
    wait_until(lambda: not kubectl.attempt(*probe, stdin=document).returncode, "the door is open")


def close_door(kubectl: Kubectl) -> None:
    """As the chart has it; nothing where the chart has gone."""
    if kubectl("get", "validatingwebhookconfiguration", "-o", "name"):
        _set_policy(kubectl, "Fail")


def _set_policy(kubectl: Kubectl, policy: str) -> None:
    patch = json.dumps([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": policy}])
    words = ("validatingwebhookconfiguration", "rollout-webhook", "--type=json", "-p", patch)
    kubectl("patch", *words)


def previous(folder: Path) -> Path:
    """Charts, operator and kinds as they were before the charts last changed.

    Raises:
        CannotRunHereError: this checkout has no history.
    """
    commit = _previous_commit()
    if not commit:
        raise CannotRunHereError("no earlier commit of the charts in this checkout")
    archive = _git("archive", commit, "charts", "operator", "crds")
    subprocess.run(("tar", "-x", "-C", str(folder)), input=archive, timeout=60, check=True)
    for name in PINS:  # our Containerfile reads these, and an earlier commit may have none
        shutil.copy(REPOSITORY / name, folder / name)
    return folder


def _previous_commit() -> str:
    if named := os.environ.get(BEFORE):
        return named
    try:
        if _git("status", "--porcelain", "--", "charts"):
            return "HEAD"
        last = _git("rev-list", "-1", "HEAD", "--", "charts").decode().strip()
        return _git("rev-parse", f"{last}^").decode().strip() if last else ""
    except (subprocess.CalledProcessError, FileNotFoundError):  # no history, or no git
        return ""


def _git(*arguments: str) -> bytes:
    command = ("git", "-C", str(REPOSITORY), *arguments)
    return subprocess.run(command, capture_output=True, timeout=60, check=True).stdout


@contextmanager
def operating(kubectl: Kubectl, scratch: Path, source: Path = REPOSITORY) -> Iterator[str]:
    """The release's operator as a process of this machine, with its account's rights and its Deployment's settings.

    `source` says whose code it runs. Yields where its health is asked.
    """
    deployment = kubectl.get("deployment", "rollout-operator")
    pod = deployment["spec"]["template"]["spec"]
    said = {one["name"]: one["value"] for one in pod["containers"][0]["env"] if "value" in one}
    port = find_free_port()
    mine = {
        "KUBECONFIG": str(write_kubeconfig(kubectl, pod["serviceAccountName"], scratch)),
        "ROLLOUT_OPERATOR_NAMESPACE": kubectl.namespace,
        "ROLLOUT_HEALTH_PORT": str(port),
        "ROLLOUT_RUNS_PER_NAMESPACE": "0",  # a hundred runs of one namespace are the load here
        "PYTHONPATH": f"{source}/operator/src:{source}/crds/src",
    }
    with process("rollout_operator", said | mine) as started:
        health = f"http://{LOOPBACK}:{port}"

        def ready() -> bool:
            assert started.poll() is None, f"the operator of {source} ended: {started.returncode}"
            return fetch(f"{health}/readyz")[0] == 200

        wait_until(ready, "the operator is ready")
        yield health


def metric(text: str, name: str) -> float:
    """The sum of a metric's series, which may be none yet."""
    assert name in text, f"no metric {name}"
    series = re.compile(rf"{name}(\{{.*\}})? (\S+)$")
    return sum(float(found.group(2)) for line in text.splitlines() if (found := series.match(line)))


def give_volumes(kubectl: Kubectl, count: int) -> None:
    """A StorageClass and volumes that claims bind to at once: no provisioner is there."""
    storage = addons.build_storage_class() | {"volumeBindingMode": "Immediate"}
    volumes = [
        addons.build_volume(f"volume-{one}", f"/nowhere/{one}", size="10Gi") for one in range(count)
    ]
    kubectl.apply(storage, *volumes)


def is_running(kubectl: Kubectl, run: str) -> bool:
    """Whether a run does its work."""
    return run in working(kubectl)


def working(kubectl: Kubectl) -> set[str]:
    """The runs that do their work."""
    return {
        one["metadata"]["name"]
        for one in kubectl.get("rolloutruns")["items"]
        for found in one.get("status", {}).get("conditions", ())
        if (found["type"], found["reason"]) == ("Ready", "Running")
    }


def condition(kubectl: Kubectl, run: str, kind: str) -> dict[str, Any]:
    """One of a run's conditions; empty when it is not there."""
    found = kubectl.get("rolloutrun", run).get("status", {}).get("conditions", ())
    return next((one for one in found if one["type"] == kind), {})


def state_of(kubectl: Kubectl) -> State:
    """Which children there are, each with what changes when it is made or written anew."""
    found = kubectl.get(",".join(CHILDREN), "-l", "rollout.dev/run")["items"]
    return {(one["kind"], one["metadata"]["name"]): _mark(one) for one in found}


def promised(kubectl: Kubectl, run: str) -> set[tuple[str, str]]:
    """The children that the record of a run's attempt names; none while there is no record."""
    records = kubectl.get("configmaps", "-l", f"rollout.dev/run={run},rollout.dev/attempt")["items"]
    lists = (one["metadata"].get("annotations", {}).get(LISTED, "") for one in records)
    places = (place.partition("/") for listed in lists for place in listed.split(",") if listed)
    return {(kind, name) for kind, _, name in places}


def wait_for_children(kubectl: Kubectl, run: str) -> State:
    """A run's children and those beside it, once all that its record names are there and are not written any more."""
    looks: list[State] = [{}]

    def settled() -> bool:
        looks.append(state_of(kubectl))
        named = promised(kubectl, run)
        return bool(named) and named <= looks[-1].keys() and looks[-1] == looks[-2]

    wait_until(settled, f"every child that the record of {run} names, at rest", every=LOOK_SECONDS)
    return looks[-1]


def _mark(child: dict[str, Any]) -> tuple[str, str]:
    meta = child["metadata"]
    written = meta.get("generation", meta["resourceVersion"])
    return meta["uid"], "" if child["kind"] == "Pod" else str(written)


def try_status(kubeconfig: Path, namespace: str, run: str, status: dict[str, Any]) -> str:
    """What the API server says to a merge patch of a run's status, nothing being kept; empty when it is fine."""
    return asyncio.run(_try_status(kubeconfig, namespace, run, status))


async def _try_status(kubeconfig: Path, namespace: str, run: str, status: dict[str, Any]) -> str:
    connection = find_connection({"KUBECONFIG": str(kubeconfig)})
    place = f"/apis/rollout.dev/v1alpha1/namespaces/{namespace}/rolloutruns/{run}/status?dryRun=All"
    headers = {"Content-Type": "application/merge-patch+json"}
    body = json.dumps({"status": status})
    async with (
        open_session(connection) as session,
        session.patch(connection.server + place, data=body, headers=headers) as answer,
    ):
        return "" if answer.ok else (await answer.json())["message"]
