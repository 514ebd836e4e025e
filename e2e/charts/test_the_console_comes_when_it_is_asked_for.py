"""The chart's console: off by default, refused without a certificate or an image, with rights to read and to ask, and nothing else."""

import pytest
from renders import CONSOLE, MODES, of_kind, pods, rendered

import charts
from cluster.errors import ClusterError
from rollout_operator.rbac import CONSOLE_RULES

pytestmark = pytest.mark.control_plane

NAME = "rollout-console"


def named(objects, *kinds):
    return [one for one in of_kind(objects, *kinds) if one["metadata"]["name"] == NAME]


def granted(roles):
    return {
        (group, resource, verb)
        for one in roles
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def in_table(*scopes):
    return {
        (rule.group, resource, verb)
        for rule in CONSOLE_RULES
        if rule.scope in scopes
        for resource in rule.resources
        for verb in rule.verbs
    }


@pytest.mark.parametrize("mode", [one for one in MODES if "console" not in one])
def test_it_is_not_there_unless_somebody_asks_for_it(mode):
    assert NAME not in str(rendered(mode))


def test_it_is_one_pod_that_speaks_tls_behind_an_address_of_the_cluster():
    made = rendered("console")
    [deployment], [service] = named(made, "Deployment"), named(made, "Service")
    pod = pods(made)[NAME]
    [container] = pod["containers"]

    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]["type"]) == (
        1,
        "Recreate",
    )
    assert service["spec"]["type"] == "ClusterIP"
    assert container["image"] == "rollout/worker:1"
    assert "--certificate=/etc/rollout/console" in container["command"]
    assert {
        "name": "certificate",
        "mountPath": "/etc/rollout/console",
        "readOnly": True,
    } in container["volumeMounts"]
    [secret] = [one["secret"] for one in pod["volumes"] if one["name"] == "certificate"]
    assert secret["secretName"] == "console-tls"
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert pod["serviceAccountName"] == NAME


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        ("tlsSecretName", "console.tlsSecretName: name a Secret"),
        ("image", "console.image: name an image"),
    ],
)
def test_it_is_refused_without_what_it_needs(left_out, words):
    values = {name: value for name, value in CONSOLE.items() if name != left_out}

    with pytest.raises(ClusterError, match=words):
        charts.render(values={"console": values})


def test_the_workers_image_has_its_command_too():
    values = {name: value for name, value in CONSOLE.items() if name != "image"}
    made = charts.objects(charts.render(values={"console": values, "images": {"worker": "w:2"}}))

    assert pods(made)[NAME]["containers"][0]["image"] == "w:2"


def test_its_account_may_read_and_ask_and_nothing_else():
    made = rendered("console")
    [binding] = named(made, "ClusterRoleBinding")

    assert granted(named(made, "ClusterRole")) == in_table("console", "reviews")
    assert [one["name"] for one in binding["subjects"]] == [NAME]
    verbs = {verb for _, _, verb in in_table("console")}
    assert verbs <= {"get", "list"}
    assert not {"secrets", "pods/exec", "pods/log"} & {one for _, one, _ in in_table("console")}


def test_in_namespaced_mode_it_reads_those_namespaces_and_has_nothing_of_the_cluster():
    made = rendered("namespaced console")

    assert not named(made, "ClusterRole", "ClusterRoleBinding")
    assert {one["metadata"]["namespace"] for one in named(made, "Role")} == {"research", "teaching"}
    assert granted(named(made, "Role")) == in_table("console")
    command = pods(made)[NAME]["containers"][0]["command"]
    assert [one for one in command if one.startswith("--namespace")] == [
        "--namespace=research",
        "--namespace=teaching",
    ]


def test_who_may_reach_it_is_said_and_it_reaches_the_api_server_alone():
    [policy] = named(rendered("console"), "NetworkPolicy")
    [way_in] = policy["spec"]["ingress"]

    assert {"namespaceSelector": CONSOLE["clients"]} in way_in["from"]
    assert [one["port"] for one in way_in["ports"]] == [8443]
    opened = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert opened == {53, 443, 6443}
