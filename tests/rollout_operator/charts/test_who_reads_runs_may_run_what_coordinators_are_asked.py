"""The policy on people who only read lets through what the console and the commands ask of a coordinator, as the chart renders it."""

import re
from pathlib import Path

import pytest
import yaml

from rollout.cluster.coordinator import COORDINATOR, RUN_FOLDER
from rollout_api import names

ROOT = Path(__file__).parents[3]
RENDERED = ROOT / "manifests" / "components" / "admission-policy"
NAME = "rollout-reader"
ASKERS = ("console/cluster/inside.py", "cli/cluster/stuck.py", "cli/runs.py")
REFUSED = {"report"}
"""It writes a page into the pod."""


def find(file, kind):
    made = yaml.safe_load_all((RENDERED / file).read_text())
    [one] = [one for one in made if one["kind"] == kind and one["metadata"]["name"] == NAME]
    return one


@pytest.fixture(scope="module")
def policy():
    return find("policies.yaml", "ValidatingAdmissionPolicy")["spec"]


def listed(policy, after):
    """Words of a list in the last rule."""
    rule = " ".join(policy["validations"][-1]["expression"].split())
    return set(re.findall(r"'([^']+)'", rule[rule.index(after) :].partition("]")[0]))


def test_it_fails_closed_on_calls_to_exec_and_is_bound(policy):
    [rule] = policy["matchConstraints"]["resourceRules"]
    assert policy["failurePolicy"] == "Fail"
    assert (rule["operations"], rule["resources"]) == (["CONNECT"], ["pods/exec"])
    binding = find("policies.yaml", "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding == {"policyName": NAME, "validationActions": ["Deny"]}


def test_the_role_has_the_mark_that_the_policy_knows_its_holders_by(policy):
    rules = find("rbac.yaml", "ClusterRole")["rules"]
    granted = {(one, verb) for rule in rules for one in rule["resources"] for verb in rule["verbs"]}
    assert ("rolloutruns/inside", "get") in granted
    assert {one for one, _ in granted} == {"rolloutruns", "rolloutruns/inside", "pods", "pods/exec"}
    assert {verb for one, verb in granted if one == "pods"} == {"get", "list"}
    [condition] = policy["matchConditions"]
    assert "subresource('inside')" in condition["expression"]
    assert ".check('get').allowed()" in condition["expression"]


def test_it_names_the_pod_the_container_and_the_folder_of_a_coordinator(policy):
    place = policy["validations"][0]["expression"]
    assert f"endsWith('{names.workload_name('', 'coordinator')}-0')" in place
    assert f"object.container == '{COORDINATOR}'" in place
    assert f"[3] == '{RUN_FOLDER}'" in policy["validations"][-1]["expression"]


@pytest.mark.parametrize("asker", ASKERS)
def test_what_is_asked_of_coordinators_is_let_through(policy, asker):
    source = " ".join((ROOT / "workers" / "src" / "rollout" / asker).read_text().split())
    asked = re.findall(r'\[ ?"(\w+)", "(\w+)", RUN_FOLDER(.*?)\]', source)
    assert asked
    commands, options = listed(policy, " in ['debug"), listed(policy, "one in ['--")
    for group, command, rest in asked:
        assert f"{group} {command}" in commands or command in REFUSED
        assert set(re.findall(r'"(--?[\w-]+)"', rest)) <= options
