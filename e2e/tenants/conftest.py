"""One cluster with the chart in it for the folder, a namespace and an editor for each test, and an honest tenant beside."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "operator"))
sys.path.insert(0, str(Path(__file__).parent))

from chart_installation import Installation, installed
from operators import eventually
from tenant import RUN, Tenant, housed

from cluster.commands import Options
from cluster.local import Shape
from cluster.providers import Cluster, open_cluster
from cluster.skips import or_skip

AUDIT_MEGABYTES_MAX = 4000
"""A log that is begun anew would take away what a test has not read yet."""


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """An API server with its log of calls; no nodes."""
    flags = (f"--audit-log-maxsize={AUDIT_MEGABYTES_MAX}",)
    options = Options(audit="Metadata", api_server_flags=flags)
    with or_skip(), open_cluster(Shape(fake_nodes=0, options=options)) as made:
        if made.local is None:
            pytest.skip(
                "cannot run here: the chart is installed into a cluster of the folder's own"
            )
        yield made


@pytest.fixture(scope="package")
def installation(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    with installed(cluster, tmp_path_factory.mktemp("installation")) as made:
        yield made


@pytest.fixture(scope="package")
def alice(installation: Installation) -> Iterator[Tenant]:
    """An honest tenant whose run works all the time."""
    with housed(installation, "alice") as tenant:
        tenant.start()
        yield tenant


@pytest.fixture
def mallory(installation: Installation, alice: Tenant) -> Iterator[Tenant]:
    """An attacker. Whatever they try, the run beside theirs is looked after, by the operator that was there before."""
    before = alice.world.pod_uids("learner") | alice.world.pod_uids("coordinator")
    with housed(installation, "mallory") as tenant:
        yield tenant
        goes_on(alice, before)


def goes_on(tenant: Tenant, before: set[str]) -> None:
    """What an honest tenant asks for is done; nothing of theirs was started anew, nor the operator."""
    assert tenant.installation.operator.process.poll() is None
    assert tenant.installation.webhook.poll() is None
    live = tenant.world.run()
    wanted = 3 - live["spec"].get("actors", {}).get("replicas", 1)
    answer = tenant.me.patch("RolloutRun", RUN, {"spec": {"actors": {"replicas": wanted}}})
    assert answer.done, answer.words
    eventually(
        lambda: tenant.world.replicas()["arithmetic-actors"] == wanted,
        "the honest tenant's run is not looked after",
    )
    tenant.world.wait_for("Ready", "True", "Running")
    assert tenant.world.run()["status"]["attempt"] == 1
    assert tenant.world.pod_uids("learner") | tenant.world.pod_uids("coordinator") == before
