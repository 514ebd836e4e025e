"""The project's images run as a user without rights on a read-only root; the worker's environment comes from the node."""

import pytest

from cluster.errors import BuildError
from cluster.kubectl import Kubectl
from cluster.nodes import containers
from cluster.providers import Cluster
from cluster.skips import or_skip
from ended import wait_for_success
from objects import build_pod

pytestmark = pytest.mark.real_nodes

NON_ROOT = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINED = {
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
HOME = {"name": "home", "emptyDir": {}}
HOME_MOUNT = {"name": "home", "mountPath": "/home/rollout"}


@pytest.fixture(scope="module")
def worker_image(real_cluster: Cluster) -> str:
    with or_skip(BuildError):
        real_cluster.import_image(containers.ensure_worker())
    return containers.WORKER


@pytest.fixture(scope="module")
def operator_image(real_cluster: Cluster) -> str:
    with or_skip(BuildError):
        real_cluster.import_image(containers.ensure_operator())
    return containers.OPERATOR


def test_the_worker_image_runs_the_command_line(real: Kubectl, worker_image: str):
    volumes, mounts = containers.build_environment_mounts()
    container = {
        "image": worker_image,
        "securityContext": CONTAINED,
        "volumeMounts": [HOME_MOUNT, *mounts],
    }
    real.apply(
        build_pod(
            "worker",
            *("rollout", "--help"),
            container=container,
            restartPolicy="Never",
            securityContext=NON_ROOT,
            volumes=[HOME, *volumes],
        )
    )

    wrote = wait_for_success(real, "worker")
    assert "rollout run" in wrote or "Usage" in wrote


@pytest.mark.slow
def test_the_operator_image_holds_the_operator_and_no_torch(real: Kubectl, operator_image: str):
    container = {"image": operator_image, "securityContext": CONTAINED}
    program = "import importlib.util as u, rollout_operator; print(u.find_spec('torch'))"
    real.apply(
        build_pod(
            "operator",
            *("python", "-c", program),
            container=container,
            restartPolicy="Never",
            securityContext=NON_ROOT,
        )
    )

    assert wait_for_success(real, "operator").strip() == "None"
