"""Whatever is wrong with a file, the message names file and line, and the exit code is 2."""

import json

import pytest
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import SpecError
from rollout.runs.manifest import load_documents
from rollout.runs.validation import apply_overrides, require_valid

GOOD = """\
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: arithmetic}
spec:
  model: {uri: "rollout://tiny-adder"}
  train:
    algorithm: {grpo: {promptsPerStep: 32, groupSize: 8}}
    environment: {builtin: {name: arithmetic}}
    rewards: [{builtin: {name: exact-match}}]
    maxSteps: 400
"""
TOML = """\
schema_version = 1
[model]
uri = "rollout://tiny-adder"
[train]
maxSteps = 5
environment = {builtin = {name = "arithmetic"}}
[train.algorithm.grpo]
clipHigh = 0.28
[[train.rewards]]
builtin = {name = "exact-match"}
"""


def write(tmp_path, text, name="run.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def run(*arguments, stdin=None):
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("spec: {a: 1\n", "a.yaml", ":2: not valid YAML"),
        ("a: 1\na: 2\n", "a.yaml", ":2: not valid YAML"),
        ("- a\n- b\n", "a.yaml", ":1: expected a mapping"),
        ("", "a.yaml", "no manifest in it"),
        ("[spec\n", "a.toml", ":1: not valid TOML"),
        ("schema_version = 7\n", "a.toml", "schema_version is 7"),
    ],
)
def test_a_broken_file_names_its_line(tmp_path, text, name, expected):
    with pytest.raises(SpecError, match=expected):
        load_documents(write(tmp_path, text, name))


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(SpecError, match="no such file"):
        load_documents(tmp_path / "none.yaml")


def test_an_unknown_field_is_told_with_line_and_the_nearest_name(tmp_path):
    path = write(tmp_path, GOOD.replace("maxSteps", "maxStep"))
    done = run("validate", "-f", path)
    assert done.exit_code == 2
    assert f"{path}:10: error: spec.train.maxStep" in done.stderr
    assert "did you mean maxSteps?" in done.stderr


def test_toml_problems_have_lines_too(tmp_path):
    path = write(tmp_path, TOML.replace("clipHigh", "clipHihg"), "run.toml")
    done = run("validate", "-f", path)
    assert f"{path}:8: error: spec.train.algorithm.grpo.clipHihg" in done.stderr


def test_good_files_of_both_forms_are_valid(tmp_path):
    for name, text in (("run.yaml", GOOD), ("run.toml", TOML)):
        done = run("validate", "-f", write(tmp_path, text, name))
        assert done.exit_code == 0, done.stderr


def test_standard_input_is_read():
    assert run("validate", "-f", "-", stdin=GOOD).exit_code == 0


def test_json_output_is_one_document(tmp_path):
    done = run("validate", "-f", write(tmp_path, GOOD.replace("400", "0")), "--output", "json")
    found = json.loads(done.stdout)
    assert done.exit_code == 2
    assert found["problems"][0]["problem"]["field"] == "spec.train.maxSteps"
    assert found["problems"][0]["line"] == 10


def test_every_error_is_told_at_once(tmp_path):
    text = GOOD.replace("exact-match", "exact_match").replace(
        "groupSize: 8", "groupSize: 8, miniBatches: 5"
    )
    with pytest.raises(SpecError) as caught:
        require_valid(load_documents(write(tmp_path, text)))
    assert "exact_match" in str(caught.value)
    assert "miniBatches" in str(caught.value)


RUNTIME = """\
apiVersion: rollout.dev/v1alpha1
kind: ClusterRolloutRuntime
metadata: {name: default}
spec: {allowedNamespaces: {from: All}, allowed: {priorityClasses: [research]}}
"""


@pytest.mark.parametrize("command", [("validate",), ("plan", "--offline")])
def test_what_the_runtime_of_the_same_folder_does_not_allow_is_told(tmp_path, command):
    folder = tmp_path / "manifests"
    folder.mkdir()
    write(folder, GOOD + "  actors: {priorityClassName: system-node-critical}\n")
    write(folder, RUNTIME, "runtime.yaml")
    done = run(*command, "-f", folder)
    said = f"{done.output}{done.exception}"
    assert done.exit_code != 0
    assert f"{folder / 'run.yaml'}:11: " in said
    assert "names 'research'" in said


def test_set_changes_fields_and_refuses_nonsense(tmp_path):
    [document] = load_documents(write(tmp_path, GOOD))
    changed = apply_overrides(document, ["train.maxSteps=7", "train.rewards[0].weight=0.5"])
    assert changed.data["spec"]["train"]["maxSteps"] == 7
    assert changed.data["spec"]["train"]["rewards"][0]["weight"] == 0.5
    assert document.data["spec"]["train"]["maxSteps"] == 400
    with pytest.raises(SpecError, match="expected path=value"):
        apply_overrides(document, ["train.maxSteps"])
    with pytest.raises(SpecError, match="cannot set 'deep' there"):
        apply_overrides(document, ["train.maxSteps.deep=1"])


def test_formatting_quotes_reals_keeps_comments_and_is_idempotent(tmp_path):
    path = write(tmp_path, GOOD.replace("groupSize: 8", "groupSize: 8, clipHigh: 0.28") + "# end\n")
    once = run("fmt", "-f", path).stdout
    assert "clipHigh: '0.28'" in once
    assert "# end" in once
    again = run("fmt", "-f", write(tmp_path, once, "again.yaml")).stdout
    assert again == once
    assert run("fmt", "--check", "-f", path).exit_code == 2
    assert run("fmt", "--check", "-f", tmp_path / "again.yaml").exit_code == 0


def test_formatting_toml_quotes_reals_too(tmp_path):
    assert 'clipHigh = "0.28"' in run("fmt", "-f", write(tmp_path, TOML, "run.toml")).stdout


def test_schema_prints_json_schema_and_crd():
    assert json.loads(run("schema").stdout)
    assert "kind: CustomResourceDefinition" in run("schema", "RolloutRun", "--format", "crd").stdout


def test_train_refuses_a_manifest_of_another_algorithm(tmp_path):
    done = run("train", "sft", "--config", write(tmp_path, GOOD), "--dry-run")
    assert done.exit_code != 0
    assert "needs spec.train.algorithm.sft, found grpo" in str(done.exception)
