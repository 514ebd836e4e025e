"""A run in real pods: what its operator, its coordinator and its kubelets say of it, and ways to harm it."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warm import run_rollout

from cluster import build
from cluster.errors import ClusterError
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster
from terminal import why_of_pods, why_of_run
from waiting import wait_until

PORT = 8443
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRun:
    """One RolloutRun on real nodes."""

    kubectl: Kubectl
    cluster: LocalCluster
    name: str

    # -- what is said ---------------------------------------------------------------------------------

    def read(self) -> dict[str, Any]:
        return self.kubectl.get("rolloutrun", self.name, "--show-managed-fields")

    def status(self) -> dict[str, Any]:
        return self.read().get("status", {})

    def condition(self, kind: str) -> dict[str, Any]:
        found = self.status().get("conditions", ())
        return next((one for one in found if one["type"] == kind), {})

    def pods(self, role: str = "") -> list[dict[str, Any]]:
        chosen = f"rollout.dev/run={self.name}" + (f",rollout.dev/role={role}" if role else "")
        return self.kubectl.get("pods", "-l", chosen)["items"]

    def uids(self, role: str) -> set[str]:
        """Of the role's pods that are not going."""
        found = (pod["metadata"] for pod in self.pods(role))
        return {meta["uid"] for meta in found if "deletionTimestamp" not in meta}

    def metrics(self) -> str:
        """The coordinator's page, through the API server."""
        pod = f"https:{self.name}-coordinator-0:{PORT}"
        pods = f"/api/v1/namespaces/{self.kubectl.namespace}/pods"
        return self.kubectl.raw(f"{pods}/{pod}/proxy/metrics")

    def step(self) -> int:
        """The last committed step; 0 while nobody answers."""
        try:
            page = self.metrics()
        except ClusterError:
            return 0
        found = re.search(r"^rollout_step_number (\S+)$", page, re.MULTILINE)
        return int(float(found.group(1))) if found else 0

    def log(self, pod: str, container: str) -> str:
        return self.kubectl.log(pod, container)

    def folder(self) -> Path:
        """The coordinator's volume, which is a folder of this machine."""
        (claim,) = self.kubectl.get("persistentvolumeclaims")["items"]
        volume = self.kubectl.get("persistentvolume", claim["spec"]["volumeName"])
        return Path(volume["spec"]["hostPath"]["path"])

    # -- what is done -----------------------------------------------------------------------------------

    def patch(self, spec: dict[str, Any]) -> int:
        """Change the spec; the generation that this makes."""
        self.kubectl.merge("rolloutrun", self.name, {"spec": spec})
        return self.read()["metadata"]["generation"]

    def kill(self, pod: str, container: str) -> None:
        """SIGKILL to everything in a container, from its node: nobody is told beforehand."""
        found = self.kubectl.get("pod", pod)
        node = next(one for one in self.cluster.nodes if one.name == found["spec"]["nodeName"])
        status = found["status"]
        statuses = [*status.get("initContainerStatuses", ()), *status["containerStatuses"]]
        uri = next(one["containerID"] for one in statuses if one["name"] == container)
        command = (str(build.path("ctr")), "-n", "k8s.io", "tasks", "kill", "--all")
        node.run(*command, "-s", "SIGKILL", uri.removeprefix("containerd://"))

    # -- what is waited for ---------------------------------------------------------------------------------

    def until(self, holds: Callable[[], Any], what: str, seconds: float) -> Any:
        """The first true answer; a run that ends or cannot go on before it says why."""

        def hopeless() -> str:
            over = self.condition("Finished").get("status") == "True"
            return "the run has ended" if over else self._hopeless()

        return self._wait(holds, what, seconds, hopeless)

    def wait_for_end(self, seconds: float) -> dict[str, Any]:
        """The condition Finished, once it is true."""

        def ended() -> dict[str, Any] | None:
            found = self.condition("Finished")
            return found if found.get("status") == "True" else None

        return self._wait(ended, "the end of the run", seconds, self._hopeless)

    def wait_for_no_pods(self, seconds: float) -> None:
        """Until nothing of the run works any more."""
        self._wait(lambda: not self.pods(), "the end of every pod", seconds, str)

    def _hopeless(self) -> str:
        return why_of_run(self.status()) or why_of_pods(self.pods())

    def _wait(
        self, holds: Callable[[], Any], what: str, seconds: float, hopeless: Callable[[], str]
    ) -> Any:
        try:
            return wait_until(holds, what, seconds, every=POLL_SECONDS, hopeless=hopeless)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.describe()}") from None

    def describe(self) -> str:
        """Everything that helps to understand a failure."""
        said = [json.dumps(self.status(), indent=1)]
        for pod in self.pods():
            name = pod["metadata"]["name"]
            said.append(f"-- {name}: {json.dumps(pod['status'].get('containerStatuses', []))}")
            log = self.kubectl.attempt("logs", name, "--all-containers", "--tail=40")
            said.append(log.stdout[-6000:])
        return "\n".join(said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A namespace where a run may be started, and a volume for its ledger."""

    kubectl: Kubectl
    cluster: LocalCluster

    @property
    def volume(self) -> Path:
        """The volume, which is a folder of this machine and was named after the namespace."""
        found = self.kubectl.get("persistentvolume", self.kubectl.namespace)
        return Path(found["spec"]["hostPath"]["path"])

    def start(self, manifest: dict[str, Any]) -> WatchedRun:
        self.kubectl.apply(manifest)
        name = manifest["metadata"]["name"]
        return WatchedRun(kubectl=self.kubectl, cluster=self.cluster, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to, read from its ledger."""

    outcome: str
    chains: list[tuple[int, str]]
    evaluations: list[dict[str, Any]]
    dispositions: dict[str, int]

    @property
    def accuracy(self) -> float:
        """Of the last evaluation."""
        return self.evaluations[-1]["last"]["value"]


def read_result(folder: Path) -> Result:
    """The result of a run whose folder, or coordinator's volume, this is."""
    words = ("runs", "show", str(folder), "--output", "json")
    done = run_rollout(*words, folder=Path.cwd())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return Result(
        outcome=found["outcome"],
        chains=[(step, chain) for step, chain in found["chains"]],
        evaluations=found["evaluations"],
        dispositions=found["dispositions"],
    )


def run_here(manifest: dict[str, Any], folder: Path) -> Result:
    """The same manifest on this machine, without a cluster."""
    file = folder / "run.json"
    file.write_text(json.dumps(manifest))
    place = folder / "run"
    words = ("run", "-f", str(file), "--run-dir", str(place))
    done = run_rollout(*words, folder=Path.cwd())
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return read_result(place)
