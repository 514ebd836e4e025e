"""The attacker answers where the operator calls a run's coordinator, and wants its token, its memory or its time."""

import base64
import json
from pathlib import Path

import pytest
from coordinators import bomb, coordinating, endless, redirect, redirect_to_me
from operators import eventually
from tenant import RUN

from charts import NAMESPACE
from cluster.control import audit

pytestmark = pytest.mark.control_plane
TOKEN = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/rollout-certificates/token"
GROWTH_BYTES_MAX = 48 << 20
OPERATOR = f"system:serviceaccount:{NAMESPACE}:rollout-operator"
SUSPEND = {"spec": {"suspend": True}}


def memory_bytes(process):
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


def elsewhere(mallory):
    server = mallory.me.send("GET", "/version")
    assert server.done
    return redirect(f"{mallory.me.server}{TOKEN}")


WISHES = {
    "sends the operator to the API server": elsewhere,
    "sends the operator to another server of mine": lambda _: redirect_to_me,
    "answers without an end": lambda _: endless,
    "answers with a bomb": lambda _: bomb,
}


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES.keys())
def test_my_coordinator(mallory, wish, tmp_path):
    mallory.start()
    process = mallory.installation.operator.process
    log = mallory.installation.audit_log()
    begin, before = log.stat().st_size, memory_bytes(process)
    with coordinating(mallory, RUN, wish(mallory), tmp_path) as evil:
        assert mallory.me.patch("RolloutRun", RUN, SUSPEND).done
        eventually(lambda: evil.heard, "the coordinator was not called")
        mallory.world.wait_for("Suspended", "True", "Suspended")
    assert memory_bytes(process) - before < GROWTH_BYTES_MAX
    assert {one.path for one in evil.heard} == {"/v1/operator/stop"}
    calls = [call for call in audit.read(log, begin) if call.user == OPERATOR]
    assert {call.name for call in calls if call.subresource == "token"} <= {"rollout-operator"}
    for one in evil.heard:
        assert_is_of_no_use_elsewhere(mallory, one.headers["Authorization"])


def assert_is_of_no_use_elsewhere(mallory, authorization):
    """What the attacker was shown is for this run's coordinator alone."""
    claims = authorization.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert claims["aud"] == [f"rollout/{mallory.world.run()['metadata']['uid']}"]
    assert mallory.me.with_token(authorization, "/api/v1/secrets").status == 401
