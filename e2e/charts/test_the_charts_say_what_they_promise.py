"""Helm's own view of the charts: they lint, they render, and they grant what the modes say. No cluster needed."""

import json
from typing import Any

import pytest
from renders import MODES, of_kind, pods, rendered

import charts
from cluster.errors import ClusterError
from rollout_operator.rbac import RULES

pytestmark = pytest.mark.control_plane

VALUES = sorted(charts.CHART.glob("values-*.yaml"))
CLUSTER_KINDS = {
    "ClusterRole", "ClusterRoleBinding", "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "FlowSchema",
    "ClusterRolloutRuntime",
}  # fmt: skip


@pytest.mark.parametrize("chart", [charts.CHART, charts.CRDS_CHART], ids=lambda path: path.name)
def test_the_charts_lint(chart):
    done = charts.helm("lint", "--strict", str(chart))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_renders_objects_with_labels(mode):
    for one in rendered(mode):
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "rollout", one["metadata"]["name"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        if mode == "everything":
            assert labels["team"] == "ml"


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_values_of_the_clouds_render_a_runtime(path):
    made = charts.objects(charts.render(files=(path,)))
    [runtime] = of_kind(made, "ClusterRolloutRuntime")
    assert {one["name"] for one in runtime["spec"]["acceleratorClasses"]} == {"h100", "l4"}
    for role in ("coordinator", "learner", "actors"):
        assert runtime["spec"]["roles"][role]["serviceAccountAnnotations"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"operator": {"replica": 2}},
            "at '/operator': additional properties 'replica' not allowed",
        ),
        (
            {"webhook": {"timeoutSeconds": 30}},
            "at '/webhook/timeoutSeconds': maximum: got 30, want 5",
        ),
        ({"crds": {"kept": True}}, "at '/crds': additional properties 'kept' not allowed"),
        (
            {"runtime": {"spec": {"roles": {"learner": {"serviceAccountAnotations": {}}}}}},
            "at '/runtime/spec/roles/learner': additional properties 'serviceAccountAnotations'",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_helm_refuses_what_the_schema_does_not_know_and_says_where(values, words):
    with pytest.raises(ClusterError, match="values don't meet the specifications") as refused:
        charts.render(values=values)
    assert words in str(refused.value)


def test_namespaced_mode_has_nothing_of_the_cluster():
    made = rendered("namespaced")
    assert of_kind(made, *CLUSTER_KINDS) == []
    roles = {one["metadata"]["namespace"] for one in of_kind(made, "Role")}
    assert roles == {"research", "teaching", charts.NAMESPACE}
    assert len(of_kind(made, "RolloutRuntime")) == 2
    [operator] = pods(made).values()
    environment = {one["name"]: one.get("value") for one in operator["containers"][0]["env"]}
    assert environment["ROLLOUT_NAMESPACES"] == "research,teaching"


def granted(objects: list[dict[str, Any]], name: str) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for one in of_kind(objects, "Role", "ClusterRole")
        if one["metadata"]["name"].startswith(name)
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def in_table(*scopes: str) -> set[tuple[str, str, str]]:
    return {
        (rule.group, resource, verb)
        for rule in RULES
        if rule.scope in scopes
        for resource in rule.resources
        for verb in rule.verbs
    }


def test_the_operator_is_granted_the_table_and_nothing_else():
    name = "rollout-operator"
    assert granted(rendered("default"), name) == in_table("watched", "cluster", "own")
    assert granted(rendered("namespaced"), name) == in_table("watched", "namespaced", "own")


@pytest.mark.parametrize(
    ("mode", "kind", "number"), [("default", "ClusterRole", 1), ("namespaced", "Role", 2)]
)
def test_coordinators_have_a_role_of_their_own_that_the_operator_may_bind(mode, kind, number):
    name = "rollout-coordinator"
    made = rendered(mode)
    roles = [one for one in of_kind(made, kind) if one["metadata"]["name"] == name]
    assert len(roles) == number
    assert granted(roles, name) == {("rollout.dev", "rolloutruns/status", "patch")}
    resource = f"{kind.lower()}s"
    rules = [rule for one in of_kind(made, "Role", "ClusterRole") for rule in one["rules"]]
    binding = [rule for rule in rules if "bind" in rule["verbs"]]
    assert len(binding) == number
    bound = [name, f"{name}-sandboxes"] if mode == "default" else [name]
    for rule in binding:
        assert (rule["resources"], rule["resourceNames"]) == ([resource], bound)
    environment = {
        one["name"]: one.get("value")
        for one in pods(made)["rollout-operator"]["containers"][0]["env"]
    }
    assert environment["ROLLOUT_COORDINATOR_ROLE"] == name


def test_the_webhook_is_granted_nothing():
    for mode in MODES:
        bound = {
            subject["name"]
            for one in of_kind(rendered(mode), "RoleBinding", "ClusterRoleBinding")
            for subject in one["subjects"]
        }
        assert "rollout-webhook" not in bound


def test_the_rotation_may_touch_two_objects():
    rules = [
        rule
        for one in of_kind(rendered("default"), "Role", "ClusterRole")
        if one["metadata"]["name"] == "rollout-certificates"
        for rule in one["rules"]
    ]
    named = sorted(name for rule in rules for name in rule["resourceNames"])
    assert named == ["rollout-webhook", "rollout-webhook-tls"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "patch"}
    assert not granted(rendered("cert-manager"), "rollout-certificates")


@pytest.mark.parametrize("mode", MODES)
def test_pods_are_restricted_and_bounded(mode):
    for name, pod in pods(rendered(mode)).items():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        [container] = pod["containers"]
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"]["memory"]
        assert container["resources"]["limits"]["memory"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
        assert pod["volumes"][0]["emptyDir"]["sizeLimit"]


def test_a_budget_needs_two_replicas():
    assert len(of_kind(rendered("default"), "PodDisruptionBudget")) == 2
    assert of_kind(rendered("one replica"), "PodDisruptionBudget") == []


def test_every_selector_finds_its_own_pods_only():
    made = rendered("default")
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in of_kind(made, "Deployment")
    }
    for one in of_kind(made, "Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = one["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        wanted = selector.get("matchLabels", selector)
        found = [name for name, has in labels.items() if wanted.items() <= has.items()]
        assert found == [one["metadata"]["name"]]


def test_fail_closed_means_runs_and_nothing_else():
    [configuration] = of_kind(rendered("default"), "ValidatingWebhookConfiguration")
    for webhook in configuration["webhooks"]:
        [rule] = webhook["rules"]
        assert rule["apiGroups"] == ["rollout.dev"]
        assert set(rule["operations"]) == {"CREATE", "UPDATE"}
        assert not any("/" in resource for resource in rule["resources"])
        assert (webhook["failurePolicy"] == "Fail") == (rule["resources"] == ["rolloutruns"])
        assert webhook["timeoutSeconds"] <= 5
        assert webhook["sideEffects"] == "None"
        assert "caBundle" not in webhook["clientConfig"]


def test_cert_manager_issues_and_injects_where_it_is_asked_to():
    made = rendered("cert-manager")
    [configuration] = of_kind(made, "ValidatingWebhookConfiguration")
    [server] = [one for one in of_kind(made, "Certificate") if not one["spec"].get("isCA")]
    wanted = f"{charts.NAMESPACE}/{server['metadata']['name']}"
    assert configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == wanted
    assert server["spec"]["dnsNames"][0] == "rollout-webhook.rollout-system.svc"
    assert of_kind(made, "Secret") == []
    assert "rollout-certificates" not in pods(made)


def test_what_cert_manager_signs_with_keeps_its_key():
    """A renewed authority with another key would not be trusted by callers that hold the old one."""
    made = rendered("cert-manager")
    [authority] = [one for one in of_kind(made, "Certificate") if one["spec"].get("isCA")]
    assert authority["spec"]["privateKey"]["rotationPolicy"] == "Never"
    [issuer] = [one for one in of_kind(made, "Issuer") if "ca" in one["spec"]]
    assert issuer["spec"]["ca"]["secretName"] == authority["spec"]["secretName"]
    assert issuer["metadata"]["name"] == "rollout-webhook"


def test_an_issuer_of_ones_own_is_taken_as_it_is():
    reference = {"name": "platform", "kind": "ClusterIssuer"}
    values = {"mode": "CertManager", "issuerRef": reference}
    made = charts.objects(charts.render(values={"webhook": {"certificates": values}}))
    assert of_kind(made, "Issuer") == []
    [server] = of_kind(made, "Certificate")
    assert server["spec"]["issuerRef"] == reference | {"group": "cert-manager.io"}


def test_pods_are_spread_as_asked_and_count_their_own_kind():
    spread = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 2}
    values = {part: {"topologySpreadConstraints": [spread]} for part in ("operator", "webhook")}
    made = charts.objects(charts.render(values=values))
    for one in of_kind(made, "Deployment"):
        [found] = one["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert found["labelSelector"] == one["spec"]["selector"]
        assert (found["maxSkew"], found["whenUnsatisfiable"]) == (2, "ScheduleAnyway")


def test_a_service_monitor_finds_the_port_of_each_part():
    made = rendered("everything")
    services = {one["metadata"]["name"]: one for one in of_kind(made, "Service")}
    monitors = of_kind(made, "ServiceMonitor")
    assert len(monitors) == 3
    for one in monitors:
        service = services[one["metadata"]["name"]]
        assert (
            one["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        )
        [endpoint] = one["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        assert one["metadata"]["labels"]["release"] == "prometheus"


def test_dashboards_arrive_whole():
    [made] = of_kind(rendered("everything"), "ConfigMap")
    assert json.loads(made["data"]["operator.json"])["panels"]
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"


@pytest.mark.parametrize("chart", [charts.CHART, charts.CRDS_CHART], ids=lambda path: path.name)
@pytest.mark.parametrize(("values", "count", "kept"), [
    ({"enabled": True}, 6, True), ({"enabled": True, "keep": False}, 6, False), ({"enabled": False}, 0, True),
])  # fmt: skip
def test_definitions_are_kept_unless_somebody_says_otherwise(chart, values, count, kept):
    rendered_chart = charts.objects(charts.render(chart, {"crds": values}))
    made = of_kind(rendered_chart, "CustomResourceDefinition")
    assert len(made) == count
    for one in made:
        policy = one["metadata"].get("annotations", {}).get("helm.sh/resource-policy")
        assert (policy == "keep") == kept


def test_definitions_come_with_one_of_the_charts_unless_somebody_asks_for_both():
    assert of_kind(rendered("default"), "CustomResourceDefinition") == []
    assert len(charts.objects(charts.render(charts.CRDS_CHART))) == 6


@pytest.mark.parametrize(
    "namespaces", [[], ["research", "teaching"]], ids=["cluster", "namespaced"]
)
def test_a_runtime_is_made_once_its_kind_is_served(namespaces):
    """Helm looks kinds up before it makes anything: beside a new definition a runtime would fail the release."""
    kind = "RolloutRuntime" if namespaces else "ClusterRolloutRuntime"
    values = {"crds": {"enabled": True}, "namespaces": namespaces}
    assert of_kind(charts.objects(charts.render(values=values)), kind) == []

    served = charts.render(values=values, served=(f"rollout.dev/v1alpha1/{kind}",))
    apart = charts.render(values=values | {"crds": {"enabled": False}})
    made = of_kind(charts.objects(served), kind)
    assert len(made) == (len(namespaces) or 1)
    assert made == of_kind(charts.objects(apart), kind)
