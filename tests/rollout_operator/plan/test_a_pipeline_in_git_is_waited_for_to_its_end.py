"""The pipeline for Flux: its objects are valid and name each other, and its expressions tell an end from a beginning.

Expressions are of a part of CEL that is translated below; Flux itself brings it to its end in e2e/gitops (slow).
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rollout_api.checks import check_document
from rollout_api.problems import Severity

MANIFESTS = Path(__file__).parents[3] / "manifests"
GITOPS, STATES = MANIFESTS / "gitops", MANIFESTS / "argocd" / "rollout.dev"
STAGES = {
    one["metadata"]["name"]: one["spec"]
    for one in yaml.safe_load_all((GITOPS / "flux-pipeline.yaml").read_text())
}


def objects_of(spec):
    """What a stage applies, by its own Kustomization."""
    folder = MANIFESTS.parent / spec["path"]
    named = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert sorted(named) == sorted(
        p.name for p in folder.glob("*.yaml") if p.stem != "kustomization"
    )
    return [yaml.safe_load((folder / name).read_text()) for name in named]


MADE = {name: objects_of(spec) for name, spec in STAGES.items()}


BESIDE = [
    one
    for path in sorted((MANIFESTS / "clouds").glob("*.yaml"))
    for one in yaml.safe_load_all(path.read_text())
    if one["apiVersion"].startswith("rollout.dev/")
]
"""Runs that stand beside manifests of other projects."""


@pytest.mark.parametrize(
    "document",
    [*(one for made in MADE.values() for one in made), *BESIDE],
    ids=lambda one: f"{one['kind']}/{one['metadata']['name']}",
)
def test_each_object_is_valid(document):
    found = check_document(document)
    assert [one for one in found if one.severity is Severity.error] == []


def test_each_stage_goes_on_from_the_one_before():
    runs, serving = MADE["gsm8k-runs"], MADE["gsm8k-serving"]
    sft, grpo = (one["metadata"]["name"] for one in runs)
    assert runs[1]["spec"]["model"]["fromRun"]["name"] == sft
    assert serving[0]["spec"]["model"]["fromRun"] == {"name": grpo, "snapshot": "Best"}
    assert any(one.get("selects") for one in runs[1]["spec"]["evaluations"])
    gates = [one["gate"]["action"] for one in serving[0]["spec"]["promotion"]["evaluations"]]
    assert gates == ["StopPromotion"]
    assert STAGES["gsm8k-serving"]["dependsOn"] == [{"name": "gsm8k-runs"}]
    sources = {
        one["metadata"]["name"] for one in read_all("flux.yaml") if one["kind"] == "GitRepository"
    }
    assert {spec["sourceRef"]["name"] for spec in STAGES.values()} <= sources


def read_all(name):
    return list(yaml.safe_load_all((GITOPS / name).read_text()))


def test_a_stage_waits_as_long_as_its_runs_may_take():
    seconds = [one["spec"]["limits"]["activeSeconds"] for one in MADE["gsm8k-runs"]]
    assert int(STAGES["gsm8k-runs"]["timeout"].removesuffix("h")) * 3600 > sum(seconds)
    assert all(spec["wait"] for spec in STAGES.values())


def evaluate(expression, document):
    """CEL's has, exists, and, or and not, as Python has them."""
    text = re.sub(r"\.exists\(c, ([^)]*)\)", r".exists(lambda c: \1)", expression)
    text = re.sub(r"has\(status\.(\w+)\)", r"('\1' in vars(status))", text)
    text = text.replace("&&", "and").replace("||", "or").replace("!status", "not status")
    given = json.loads(json.dumps(document), object_hook=Fields)
    names = {"status": given.status or Fields({}), "metadata": given.metadata}
    return bool(eval(text, {}, names))


class Fields(SimpleNamespace):
    """A map whose fields are attributes; lists of it have CEL's exists."""

    def __init__(self, found):
        lists = {name: Several(one) for name, one in found.items() if isinstance(one, list)}
        super().__init__(**{"status": None, **found, **lists})


class Several(list):
    def exists(self, holds):
        return any(holds(one) for one in self)


ENDS = {
    "RolloutRun": {
        "succeeded": "current",
        "failed": "failed",
        "invalid": "failed",
        "node-lost": "failed",
    },
    "RolloutEndpoint": {"invalid": "failed"},
}
"""Every other state is one of work that goes on."""


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (kind, path.stem)
        for kind in ENDS
        for path in sorted((STATES / kind / "testdata").glob("*.yaml"))
    ],
)
def test_expressions_tell_what_a_state_means(kind, state):
    document = yaml.safe_load((STATES / kind / "testdata" / f"{state}.yaml").read_text())
    [check] = [
        one for spec in STAGES.values() for one in spec["healthCheckExprs"] if one["kind"] == kind
    ]
    told = [name for name in ("current", "failed") if evaluate(check[name], document)]
    expected = ENDS[kind].get(state)
    assert told == ([expected] if expected else [])
