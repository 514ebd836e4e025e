"""The values for clouds, rendered for two namespaces: no identity and no object is both's, and the policies shown end there."""

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml
from worlds import PLATFORM, SPEC

from rollout_api.v1alpha1.runtime import ClusterRuntimeSpec
from rollout_api.worker import WorkerOrder
from rollout_operator.run.attempt import render_record
from rollout_operator.run.plan.preconditions.checks import resolve_spec
from rollout_operator.run.render.inputs import Inputs

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "keep-objects-in-a-bucket.md"
ANNOTATIONS = {"eks": "eks.amazonaws.com/role-arn", "gke": "iam.gke.io/gcp-service-account"}
ROLES = ("coordinator", "learner", "actor")


def rendered(cloud, namespace):
    values = yaml.safe_load((ROOT / f"charts/rollout/values-{cloud}.yaml").read_text())
    runtime = ClusterRuntimeSpec.model_validate(values["runtime"]["spec"])
    inputs = Inputs(
        name="run",
        namespace=namespace,
        uid="uid-1",
        attempt=1,
        spec=resolve_spec(SPEC, runtime),
        runtime=runtime,
        platform=PLATFORM,
    )
    return render_record(inputs)


def identities(cloud, namespace):
    accounts = [
        one for one in rendered(cloud, namespace).children if one["kind"] == "ServiceAccount"
    ]
    return {
        one["metadata"]["name"]: one["metadata"]["annotations"][ANNOTATIONS[cloud]]
        for one in accounts
    }


def place(namespace):
    order = rendered("eks", namespace).config_map["data"]["order.json"]
    return WorkerOrder.model_validate_json(order).layout.objects_uri


@pytest.mark.parametrize("cloud", sorted(ANNOTATIONS))
def test_no_two_accounts_of_any_namespace_share_an_identity(cloud):
    found = [identities(cloud, one) for one in ("research", "teaching")]
    assert [sorted(one) for one in found] == 2 * [sorted(f"run-{role}" for role in ROLES)]
    assert len({identity for one in found for identity in one.values()}) == 2 * len(ROLES)
    assert all("$" not in identity for one in found for identity in one.values())
    assert all("research" in identity for identity in found[0].values())


def policies():
    return [
        json.loads(one) for one in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ]


def allowed(policy, action, resource):
    for statement in policy["Statement"]:
        actions = statement["Action"]
        named = action in ([actions] if isinstance(actions, str) else actions)
        if named and fnmatchcase(resource, statement["Resource"]):
            return True
    return False


def test_the_policies_shown_reach_the_namespaces_objects_and_no_others():
    writer, reader, _ = policies()
    own, other = (f"arn:aws:s3:::{place(one)[5:]}/blake3/x" for one in ("research", "teaching"))
    assert allowed(writer, "s3:PutObject", own) and allowed(reader, "s3:GetObject", own)
    assert not allowed(reader, "s3:PutObject", own)
    for policy in (writer, reader):
        assert not any(
            allowed(policy, f"s3:{verb}Object", other) for verb in ("Get", "Put", "Delete")
        )
        above = "arn:aws:s3:::BUCKET/runs/uid-1/blake3/x"
        assert not allowed(policy, "s3:GetObject", above)


def test_the_accounts_that_are_trusted_are_those_of_one_namespace_and_role():
    condition = policies()[2]["Statement"][0]["Condition"]["StringLike"]["OIDC:sub"]
    accounts = {f"system:serviceaccount:research:run-{role}": role for role in ROLES}
    assert [role for one, role in accounts.items() if fnmatchcase(one, condition)] == ["learner"]
    assert not fnmatchcase("system:serviceaccount:teaching:run-learner", condition)
    assert set(identities("eks", "research")) == {one.rpartition(":")[2] for one in accounts}
