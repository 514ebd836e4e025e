"""What the coordinator makes of a real API server: its tokens, its keys, and the one struct it may write."""

import asyncio
import base64
import json
from pathlib import Path

import pytest
import yaml

from cluster.kubectl import Kubectl
from cluster.providers import Cluster
from rollout.coordinator.server.callers import AccountCallers, Unauthenticated
from rollout.coordinator.status.kubernetes import ApiWriter, Unwritten
from rollout_api.v1alpha1.run_status import Outcome, Progress
from rollout_api.worker import Authentication, ProgressWriting, RunIdentity
from runs import build_run, install_crds

pytestmark = pytest.mark.control_plane

UID = "0d5c2f5e-run"


def token(kubectl: Kubectl, account: str, audience: str = "") -> str:
    wanted = ("--audience", audience) if audience else ()
    return kubectl("create", "token", account, *wanted, "--duration", "10m").strip()


@pytest.fixture
def callers(fake: Kubectl, tmp_path: Path) -> AccountCallers:
    """As the operator makes it: the issuer and the keys that the API server publishes."""
    for account in ("arithmetic-actor", "arithmetic-learner"):
        fake("create", "serviceaccount", account)
    keys = tmp_path / "jwks.json"
    keys.write_text(fake.raw("/openid/v1/jwks"))
    issuer = json.loads(fake.raw("/.well-known/openid-configuration"))["issuer"]
    subject = f"system:serviceaccount:{fake.namespace}:arithmetic"
    accounts = {f"{subject}-actor": "actor", f"{subject}-learner": "learner"}
    wanted = Authentication.model_validate(
        {"issuer": issuer, "jwksFile": str(keys), "accounts": accounts}
    )
    return AccountCallers(wanted, UID)


def test_a_token_of_a_real_api_server_is_known_by_its_keys(fake: Kubectl, callers: AccountCallers):
    for role in ("actor", "learner"):
        good = token(fake, f"arithmetic-{role}", f"rollout/{UID}")
        assert callers.identify(f"Bearer {good}").role == role


def test_tokens_for_others_are_not_taken(fake: Kubectl, callers: AccountCallers):
    for bad, reason in (
        (token(fake, "arithmetic-actor"), "another audience"),
        (token(fake, "arithmetic-actor", "rollout/another"), "another audience"),
        (token(fake, "default", f"rollout/{UID}"), "no role"),
    ):
        with pytest.raises(Unauthenticated, match=reason):
            callers.identify(f"Bearer {bad}")


@pytest.fixture(scope="module")
def with_our_kinds(fake_cluster: Cluster) -> None:
    install_crds(fake_cluster.kubectl)


@pytest.fixture
def written(fake: Kubectl, with_our_kinds: None, tmp_path: Path):
    """A run, an account that may patch its status and nothing else, and a writer under that account."""
    fake.apply(build_run("arithmetic"))
    uid = fake.get("rolloutrun", "arithmetic")["metadata"]["uid"]
    fake("create", "serviceaccount", "arithmetic-coordinator")
    fake(
        "create",
        "role",
        "arithmetic-coordinator",
        "--verb=patch",
        "--resource=rolloutruns.rollout.dev/status",
        "--resource-name=arithmetic",
    )
    fake(
        "create",
        "rolebinding",
        "arithmetic-coordinator",
        "--role=arithmetic-coordinator",
        f"--serviceaccount={fake.namespace}:arithmetic-coordinator",
    )
    (tmp_path / "token").write_text(token(fake, "arithmetic-coordinator"))
    cluster = yaml.safe_load(fake.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = tmp_path / "ca.crt"
    if "certificate-authority-data" in cluster:
        authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    else:
        authority = Path(cluster["certificate-authority"])
    wanted = ProgressWriting(
        api_url=cluster["server"], token_file=str(tmp_path / "token"), ca_file=str(authority)
    )

    def write(progress: Progress, name: str = "arithmetic", uid: str = uid) -> None:
        run = RunIdentity(name=name, namespace=fake.namespace, uid=uid)
        asyncio.run(ApiWriter(wanted, run).write(progress))

    return write


def test_progress_is_applied_and_nothing_else_is_touched(fake: Kubectl, written):
    before = fake.get("rolloutrun", "arithmetic")
    written(Progress(attempt=1, step=3, reward_mean=0.25, bottleneck="Actors"))
    written(Progress(attempt=1, step=4, outcome=Outcome(kind="Succeeded", reason="Finished")))
    after = json.loads(
        fake("get", "rolloutrun", "arithmetic", "-o", "json", "--show-managed-fields")
    )
    progress = after["status"]["progress"]
    assert (progress["step"], progress["outcome"]["kind"]) == (4, "Succeeded")
    assert "bottleneck" not in progress, "what is not said any more is gone"
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    owners = {one["manager"]: one for one in after["metadata"]["managedFields"]}
    ours = owners["rollout-coordinator"]
    assert (ours["operation"], ours["subresource"]) == ("Apply", "status")
    assert set(ours["fieldsV1"]["f:status"]) == {"f:progress"}


def test_a_namesake_and_another_run_are_not_written(fake: Kubectl, written):
    fake.apply(build_run("other"))
    with pytest.raises(Unwritten, match="another run of this name"):
        written(Progress(step=1), uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(Unwritten, match="HTTP 403"):
        written(Progress(step=1), name="other")
    assert "progress" not in fake.get("rolloutrun", "arithmetic").get("status", {})


def test_a_write_that_was_overtaken_is_refused(
    fake: Kubectl, written, monkeypatch: pytest.MonkeyPatch
):
    """Between the look and the write the object may change, or be another one."""
    whole = ApiWriter.apply

    async def overtaken(self, session, body, *, dry):
        answer = await whole(self, session, body, dry=dry)
        if dry:
            fake("label", "rolloutrun", "arithmetic", "touched=yes")
        return answer

    monkeypatch.setattr(ApiWriter, "apply", overtaken)
    with pytest.raises(Unwritten, match="HTTP 409"):
        written(Progress(step=1))
    assert "progress" not in fake.get("rolloutrun", "arithmetic").get("status", {})
