"""The page for platform engineers is followed from its first command to its last, in a cluster of its own.

Helm, API server, scheduler, controllers, operator, webhook and its certificate are real; the node is a `kubelet`, on which the run's
pods do nothing: that its work is done is written when the page waits for it.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from deployed_processes import Processes, machine_address, processes
from docs_kit import write_files
from followed_pages import follow
from kubelets import Kubelet
from kubernetes import client, config
from releases import inside
from stage import DONE

import charts
from cluster import build
from cluster.control.ports import find_free_ports
from cluster.errors import CannotRunHereError
from cluster.kubectl import Kubectl
from cluster.local import Shape, running
from cluster.nodes.addons import build_volume
from cluster.paths import REPOSITORY
from cluster.skips import or_skip
from runs import STORAGE
from waiting import wait_until
from webhooks import fetch

pytestmark = [pytest.mark.control_plane, pytest.mark.timeout(900)]

PAGE = REPOSITORY / "docs" / "paths" / "platform-engineer.md"
TEAM = "team-a"
NODES = {"node-1": {"nvidia.com/gpu": "8"}}
REFUSED = "refused"
"""The comment of a command that ends with an error."""
TYPED_AGAIN = ("context deadline exceeded", "status unknown for quota")
"""What is not reviewed within five seconds, as on a busy machine, or under a quota that nobody has counted for yet, is not made."""
TYPING_SECONDS = 120.0
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}
"""For the page's bucket, which is a server of this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engineer:
    """Somebody before a terminal, in `folder`; what `meanwhile` happens in the cluster is named by a part of the command."""

    kubectl: Kubectl
    folder: Path
    environment: dict[str, str]
    meanwhile: dict[str, Callable[[], None]]

    def __call__(self, command: str) -> str:
        words = shlex.split(command, comments=True)
        program = {
            "helm": [str(build.path("helm"))],
            "kubectl": [self.kubectl.binary],
            "rollout": [sys.executable, "-m", "rollout"],
        }[words[0]]

        def typed() -> subprocess.CompletedProcess[str] | None:
            done = self._run([*program, *words[1:]])
            return None if any(one in done.stdout for one in TYPED_AGAIN) else done

        done = wait_until(typed, f"an answer to {command}", TYPING_SECONDS)
        wanted = command.rpartition("# ")[2] == REFUSED
        assert (done.returncode != 0) == wanted, f"{command}\n{done.stdout}"
        for part, happens in self.meanwhile.items():
            if part in command:
                happens()
        return done.stdout

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Kubectl]:
    with or_skip(), running(Shape(fake_nodes=0)) as made:
        volumes = [
            build_volume(f"volume-{one}", f"/nowhere/{one}", size="10Gi") for one in range(4)
        ]
        for one in volumes:
            one["spec"]["storageClassName"] = STORAGE["metadata"]["name"]
        made.kubectl.apply(STORAGE, *volumes)
        yield made.kubectl


@pytest.fixture
def address() -> str:
    try:
        return machine_address()
    except OSError as error:
        with or_skip():
            raise CannotRunHereError(f"no address but loopback: {error}") from error
        raise


@pytest.fixture
def system(kubectl: Kubectl, address: str, tmp_path: Path) -> Iterator[Processes]:
    """The processes of the release, to be started when it is there, and a node for its pods and the team's."""
    api = client.CoreV1Api(config.new_client_from_config(str(kubectl.kubeconfig)))
    kubelet = Kubelet(
        api=api,
        namespaces=(charts.NAMESPACE, TEAM),
        nodes=NODES,
        folder=tmp_path,
        logs=tmp_path,
        address=address,
    )
    kubelet.start()
    with processes(inside(kubectl), tmp_path, address) as made:
        yield made
    kubelet.stop()


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[str]:
    """Where an S3 server with the page's bucket answers."""
    import boto3

    (port,) = find_free_ports(["127.0.0.1"])
    endpoint = f"http://127.0.0.1:{port}"
    with (tmp_path / "s3.log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    made = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )

    def answers() -> bool:
        assert server.poll() is None, (tmp_path / "s3.log").read_text()
        return fetch(endpoint)[0] != 0

    try:
        wait_until(answers, "the S3 server answers")
        made.create_bucket(Bucket="runs")
        yield endpoint
    finally:
        server.terminate()
        server.wait(60)


def uids(kubectl: Kubectl) -> set[str]:
    """The pods of the team's run."""
    pods = inside(kubectl, TEAM).get("pods", "-l", "rollout.dev/run=arithmetic")["items"]
    return {one["metadata"]["uid"] for one in pods}


def test_from_an_empty_cluster_to_a_team_that_trains_and_back(kubectl, system, bucket, tmp_path):
    (tmp_path / "desk").mkdir()
    desk = write_files(PAGE, tmp_path / "desk")
    for name in ("charts", "manifests"):
        (desk / name).symlink_to(REPOSITORY / name)
    mine = shutil.copy(kubectl.kubeconfig, tmp_path / "kubeconfig")
    before: set[str] = set()
    meanwhile = {
        "--create-namespace": system.start,
        "kubectl apply -f manifests/tenant": lambda: wait_until(
            lambda: may(kubectl), "the team may make runs"
        ),
        "rollout describe arithmetic": lambda: before.update(uids(kubectl)),
        "helm upgrade rollout": system.restart,
        "rollout get": lambda: inside(kubectl, TEAM).merge(
            "rolloutrun", "arithmetic", {"status": {"progress": DONE}}, "status"
        ),
        "helm uninstall": system.stop,
    }
    environment = {
        "KUBECONFIG": str(mine),
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "COLUMNS": "150",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "AWS_ENDPOINT_URL": bucket,
        **CREDENTIALS,
    }
    engineer = Engineer(kubectl=kubectl, folder=desk, environment=environment, meanwhile=meanwhile)

    follow(PAGE, engineer)

    assert before
    assert uids(kubectl) in (before, set())
    assert kubectl.get("crd")["items"]


def may(kubectl: Kubectl) -> bool:
    """Whether who is of the team may make runs there: roles are put together after they were made."""
    who = ("--as", "alice", "--as-group", TEAM)
    asked = ("auth", "can-i", "create", "rolloutruns.rollout.dev", *who)
    return inside(kubectl, TEAM).attempt(*asked).returncode == 0
