"""The attacker has the operator's token and wants more than the operator has: a role of their own, or another's."""

from dataclasses import replace

import pytest
from cluster_calls import ApiServer, build_applier
from worlds import PLATFORM, RING, SPEC, build_inputs

from rollout_api.v1alpha1.runtime import RuntimeSpec
from rollout_operator.chart import render_rules
from rollout_operator.errors import ChildRefused
from rollout_operator.kube.resources import CONFIG_MAPS
from rollout_operator.rbac import COORDINATOR, COORDINATOR_RULES, RULES, SANDBOXES
from rollout_operator.run.attempt import build_children, render_record, sign_record
from rollout_operator.run.index.store import RunStore
from rollout_operator.run.permitted import Permit, check_permitted
from rollout_operator.run.render.inputs import RoleReference

RBAC = "rbac.authorization.k8s.io"
WRITES = {"create", "update", "patch", "delete", "*"}


SANDBOX_RUNTIME = RuntimeSpec.model_validate({"sandbox": {"userNamespaces": True}})
SANDBOXED_SPEC = {
    **SPEC,
    "train": {**SPEC["train"], "environment": {"builtin": {"name": "code"}}},
}


def children_of(inputs):
    """By kind and name."""
    found = build_children(inputs, "run-0123456789")
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def verbs_on(*resources):
    """Rules about these resources, with their verbs."""
    return [(rule, set(rule.verbs)) for rule in RULES if set(rule.resources) & set(resources)]


def test_no_role_can_be_written():
    for _, verbs in verbs_on("roles", "clusterroles", "clusterrolebindings"):
        assert not verbs & (WRITES | {"escalate"})


def test_only_the_coordinators_role_can_be_bound():
    bound = [rule for rule in RULES if "bind" in rule.verbs]
    assert {rule.resources for rule in bound} == {("clusterroles",), ("roles",)}
    for rule in bound:
        names = (COORDINATOR, SANDBOXES) if rule.scope == "cluster" else (COORDINATOR,)
        assert (rule.names, rule.verbs, rule.group) == (names, ("bind",), RBAC)


@pytest.mark.parametrize("verb", ["escalate", "impersonate", "approve", "sign", "*"])
def test_nothing_is_granted_that_gives_further_rights(verb):
    assert not any(verb in rule.verbs for rule in RULES)


def test_tokens_are_of_one_account():
    [(rule, verbs)] = verbs_on("serviceaccounts/token")
    assert (len(rule.names), verbs) == (1, {"create"})


def test_coordinators_may_patch_the_status_of_runs_and_those_with_sandboxes_make_pods():
    granted = {one.scope: (one.group, one.resources, one.verbs) for one in COORDINATOR_RULES}
    assert granted == {
        "coordinator": ("rollout.dev", ("rolloutruns/status",), ("patch",)),
        "sandboxes": ("", ("pods",), ("create", "list", "delete")),
    }
    assert len(COORDINATOR_RULES) == 2
    assert "\ncoordinator:\n" in render_rules() and "\nsandboxes:\n" in render_rules()


def test_only_runs_with_sandbox_pods_are_bound_to_the_role_that_makes_them():
    plain = children_of(build_inputs())
    boxed = children_of(build_inputs(SANDBOXED_SPEC, SANDBOX_RUNTIME))
    assert ("RoleBinding", "run-sandboxes") not in plain
    binding = boxed["RoleBinding", "run-sandboxes"]
    own = Permit(run="run", namespace="ns", uid="uid-0001")
    check_permitted(binding, own)
    check_permitted(boxed["NetworkPolicy", "run-sandboxes"], own)
    for name in ("rollout-coordinator", "cluster-admin"):
        forged = {**binding, "roleRef": {**binding["roleRef"], "name": name}}
        with pytest.raises(ChildRefused, match="roleRef"):
            check_permitted(forged, own)
    progress = boxed["RoleBinding", "run-progress"]
    with pytest.raises(ChildRefused, match="roleRef"):
        check_permitted({**progress, "roleRef": binding["roleRef"]}, own)


@pytest.mark.parametrize("reference", [RoleReference(), RoleReference(kind="Role", name="mine")])
def test_the_binding_leaves_for_the_installations_own_role_only(reference):
    platform = replace(PLATFORM, coordinator_role=reference)
    children = build_children(build_inputs(platform=platform), "run-0123456789")
    binding = next(one for one in children if one["kind"] == "RoleBinding")
    own = Permit(run="run", namespace="ns", uid="uid-0001", coordinator_role=reference)
    check_permitted(binding, own)
    with pytest.raises(ChildRefused, match="roleRef"):
        check_permitted(binding, replace(own, coordinator_role=RoleReference(name="other")))


def test_a_role_in_a_record_of_another_version_is_left_alone():
    """A live run outlives an upgrade: what it had and we no longer make is neither written nor missed."""
    record = render_record(build_inputs())
    listed = record.config_map["metadata"]["annotations"]
    listed["rollout.dev/children"] += ",Role/run-coordinator"
    live = ApiServer()._take("create", sign_record(record, RING).config_map, CONFIG_MAPS)
    store = RunStore(lambda _: None)
    meta = {"name": "run", "namespace": "ns", "uid": "uid-0001", "resourceVersion": "1"}
    store.put_object("RolloutRun", {"metadata": meta, "spec": {}})
    store.put(CONFIG_MAPS, live)
    seen = type("Seen", (), {"children": store.children("ns", "uid-0001")})
    wanted = type("Wanted", (), {"record": record.name})
    expected = build_applier(ApiServer(), store)._expected(seen, wanted)
    assert len(expected) == len(record.children)
    assert not any(kind == "Role" for kind, _ in expected)
