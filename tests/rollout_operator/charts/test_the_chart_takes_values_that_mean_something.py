"""What can be said about the chart without Helm: values, rights, dashboards. The rest is in e2e."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from rollout_operator.chart import main, render_rules
from rollout_operator.metrics import build_metrics, watch_gauges
from rollout_operator.rbac import RULES, Rule
from rollout_operator.rotation.__main__ import Health
from rollout_operator.webhook.server import Ports, WebhookServer
from rollout_operator.webhook.tls import Certificate, KeyPair

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "rollout"
FILES = sorted(CHART.glob("values*.yaml"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def errors(values):
    checked = jsonschema.Draft202012Validator(SCHEMA).iter_errors(values)
    return [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in checked]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_values_that_are_shipped_fit_the_schema(path):
    assert errors(yaml.safe_load(path.read_text())) == []


def test_there_are_values_for_the_clouds():
    assert {path.stem for path in FILES} == {"values", "values-eks", "values-gke"}


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 2},
        {"operator": {"replica": 2}},
        {"operator": {"replicas": "two"}},
        {"operator": {"replicas": 9}},
        {"webhook": {"failurePolicy": "Maybe"}},
        {"webhook": {"timeoutSeconds": 30}},
        {"webhook": {"certificates": {"mode": "cert-manager"}}},
        {"namespaces": "research"},
        {"image": {"pullPolicy": "Sometimes"}},
        {"runtime": {"spec": {"acceleratorClasses": [{"name": "h100"}]}}},
        {"runtime": {"spec": {"queue": "gpus"}}},
        {"serviceMonitor": {"interval": "30s"}},
        {"crds": {"install": True}},
        {"crds": {"enabled": "yes"}},
    ],
    ids=json.dumps,
)
def test_a_typo_or_a_wrong_value_is_refused(values):
    assert errors(values)


def test_helm_may_add_global_values():
    assert errors({"global": {"anything": 1}}) == []


def test_the_rights_are_those_of_the_table():
    """`python -m rollout_operator.chart` writes them."""
    assert main(["--check", "--root", str(ROOT)]) == 0


def test_nothing_is_granted_by_wildcard_and_secrets_are_never_listed():
    for rule in RULES:
        assert "*" not in (rule.group, *rule.resources, *rule.verbs)
        if "secrets" in rule.resources:
            assert not {"list", "watch", "deletecollection"} & set(rule.verbs)


def test_nothing_that_belongs_to_the_cluster_is_in_a_namespaced_role():
    cluster_scoped = {
        "nodes",
        "storageclasses",
        "csidrivers",
        "clusterrolloutruntimes",
        "namespaces",
    }
    for rule in RULES:
        if rule.scope != "cluster":
            assert not cluster_scoped & {name.split("/")[0] for name in rule.resources}


def test_a_rule_reads_as_a_role_has_it():
    rule = Rule(group="apps", resources=("a", "b"), verbs=("get",), scope="own", why="why")
    found = yaml.safe_load(render_rules([rule]))["own"]
    assert found == [{"apiGroups": ["apps"], "resources": ["a", "b"], "verbs": ["get"]}]


def metrics_that_exist(tmp_path):
    """Every series of our three processes, under the names that Prometheus stores."""
    ours = build_metrics()
    watch_gauges(
        ours, queue_depth=int, leading=bool, ages=lambda: {"x": 1.0}, reasons=lambda: {"x": 1}
    )
    pair = KeyPair(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
    server = WebhookServer(Certificate(pair), Ports(host="127.0.0.1"))
    names = set()
    for registry in (ours.registry, server._registry, Health().registry):
        for family in registry.collect():
            names |= {family.name, *(sample.name for sample in family.samples)}
            names |= {family.name + "_total"} if family.type == "counter" else set()
            if family.type == "histogram":
                names |= {family.name + "_bucket"}
    return names | metrics_of_workers()


def metrics_of_workers():
    """The names in the modules that render them; counters are stored with `_total`, histograms with three ends."""
    modules = ("coordinator/status/prometheus.py", "inference/gateway/metrics.py")
    text = "".join((ROOT / "workers/src/rollout" / one).read_text() for one in modules)
    names = set(re.findall(r'"(rollout_[a-z_]+)"', text))
    return names | {
        f"{name}_{end}" for name in names for end in ("total", "bucket", "sum", "count")
    }


def test_dashboards_show_metrics_that_exist(tmp_path):
    existing = metrics_that_exist(tmp_path)
    shown = set()
    for path in sorted((CHART / "files" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                shown |= set(re.findall(r"rollout_[a-z_]+", target["expr"]))
    assert len(shown) >= 10
    assert shown - existing == set()


def test_panels_do_not_overlap():
    for path in sorted((CHART / "files" / "dashboards").glob("*.json")):
        taken = set()
        for panel in json.loads(path.read_text())["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken, panel["title"]
            assert at["x"] + at["w"] <= 24
            taken |= cells


def test_every_value_is_explained_in_the_readme():
    text = (CHART / "README.md").read_text()

    def leaves(values, prefix=""):
        for name, value in values.items():
            if isinstance(value, dict) and f"`{prefix}{name}`" not in text:
                yield from leaves(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}"

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert [path for path in leaves(values) if f"`{path}`" not in text] == []


def test_the_chart_never_writes_what_a_process_writes():
    """caBundle and the Secret's data have one writer each; two would fight under Helm 4 and Argo CD."""
    text = (CHART / "templates" / "webhook.yaml").read_text()
    without_notes = re.sub(r"\{\{-? ?/\*.*?\*/ ?-?\}\}", "", text)
    assert "caBundle" not in without_notes
    assert not re.search(r"^(data|stringData):", without_notes, re.MULTILINE)
    assert "genCA" not in text
