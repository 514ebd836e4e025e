"""What is committed is what the models say; the generator notices every difference."""

import re
from pathlib import Path

import pytest
import yaml

from rollout_api.generate.__main__ import find_differences, main, write_outputs
from rollout_api.generate.chart import render_template
from rollout_api.generate.operator_chart import render_definition
from rollout_api.generate.outputs import build_outputs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def outputs():
    return build_outputs("1.2.3")


@pytest.fixture
def written(outputs, tmp_path):
    write_outputs(tmp_path, outputs, [])
    return tmp_path


def test_the_committed_files_are_the_generated_ones(capsys):
    status = main(["--check", "--root", str(ROOT)])

    assert status == 0, f"run `make generate`:\n{capsys.readouterr().out}"


def test_generating_twice_gives_the_same_files(outputs):
    assert build_outputs("1.2.3") == outputs


def test_what_was_written_is_found_unchanged(outputs, written):
    assert find_differences(written, outputs) == ([], [])


def test_every_changed_or_missing_file_is_found(outputs, written):
    for path in outputs:
        before = (written / path).read_text()
        (written / path).write_text(before + "\n")
        assert find_differences(written, outputs) == ([path], [])
        (written / path).unlink()
        assert find_differences(written, outputs) == ([path], [])
        (written / path).write_text(before)


def test_a_file_that_nothing_generates_is_found_and_removed(outputs, written):
    stale = "crds/generated/old.yaml"
    (written / stale).write_text("")

    assert find_differences(written, outputs) == ([], [stale])
    write_outputs(written, outputs, [stale])
    assert find_differences(written, outputs) == ([], [])


def test_kustomize_applies_every_definition():
    listed = yaml.safe_load((ROOT / "crds" / "kustomization.yaml").read_text())["resources"]
    there = sorted(path.name for path in (ROOT / "crds" / "generated").glob("*.yaml"))
    assert listed == [f"generated/{name}" for name in there]


def test_the_chart_wraps_the_very_definitions():
    for path in (ROOT / "crds/generated").glob("*.yaml"):
        template = (ROOT / "charts/rollout-crds/templates" / path.name).read_text()
        inner = [line for line in template.splitlines() if not line.startswith("{{-")]
        keep = [" annotations:", "  helm.sh/resource-policy: keep"]

        assert [line for line in inner if line not in keep] == path.read_text().splitlines()
        assert template.count("{{-") == 4


def test_both_charts_hold_the_same_definitions_but_for_their_labels():
    for path in (ROOT / "crds/generated").glob("*.yaml"):
        apart = (ROOT / "charts/rollout-crds/templates" / path.name).read_text()
        within = (ROOT / "charts/rollout/templates/crds" / path.name).read_text()
        theirs = " labels: {app.kubernetes.io/part-of: rollout}\n"
        ours = (
            " labels:\n"
            '  {{- include "rollout.labels" (dict "root" . "part" "crds") | nindent 2 }}\n'
        )

        assert within.count(ours) == 1
        assert within.replace(ours, theirs) == apart


def test_a_definition_whose_labels_moved_is_not_rendered_without_them():
    with pytest.raises(ValueError, match="expected one line 'labels:"):
        render_definition("metadata:\n  name: runs\n")


def test_a_description_cannot_become_a_helm_template():
    with pytest.raises(ValueError, match="Helm would take for a template"):
        render_template("metadata:\n  description: '{{ x }}'\n")


def test_every_reason_and_type_is_in_the_reference():
    conditions = (ROOT / "docs/reference/conditions.md").read_text()
    api = (ROOT / "docs/reference/api.md").read_text()

    assert "| `NoLearningSignal` |" in conditions
    assert "### Grpo" in api
    assert '*`"0.2"`*' in api


def test_every_link_of_the_reference_leads_somewhere():
    api = (ROOT / "docs/reference/api.md").read_text()
    anchors = {
        line.lstrip("#").strip().lower() for line in api.splitlines() if line.startswith("#")
    }

    assert set(re.findall(r"\]\(#([a-z0-9]+)\)", api)) <= anchors
