"""A suite that is a plugin: its rows are checked and had once, its scores are a reward's, and a run is measured by it."""

import json

import pytest
from plugin_kit import write
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import DataError, InfrastructureError, PluginError
from rollout.plugins.sidecar.conformance.running import check_plugin
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.kinds import suite
from rollout.plugins.sidecar.kinds.suite import RowPages, read_rows
from rollout.plugins.sidecar.manifest import read_plugin
from rollout_api.checks import check_spec
from rollout_api.checks.facts import Facts
from rollout_api.v1alpha1.run import RolloutRunSpec

pytestmark = pytest.mark.process

QUIZ = """
    class Quiz:
        def __init__(self, word="a"):
            self.word = word
        def rows(self, split):
            return [{"prompt": f"{split} {n}", "n": n} for n in range(2500 if split == "report" else 3)]
        def score(self, prompts, completions, rows):
            return [float(self.word in one.text) for one in completions]
    serve(evaluation=Quiz)
"""


def page(*rows, total, **more):
    return contract.RowsResponse(rows_json=rows, total=total, **more)


def test_rows_are_had_in_pages_and_in_order(tmp_path):
    plugin = read_plugin(write(tmp_path / "quiz", QUIZ, kind="evaluation"))

    assert [one["n"] for one in read_rows(plugin, {}, "report")] == list(range(2500))
    assert [one["prompt"] for one in read_rows(plugin, {}, "selection")][:1] == ["selection 0"]


LIES = {
    "no JSON": ([page("{", total=1)], "row 0 is no JSON"),
    "no object": ([page("{}", "[1]", total=2)], "row 1: expected a JSON object"),
    "deep": ([page("[" * 100_000, total=1)], "row 0 is no JSON"),
    "more than it has": ([page("{}", "{}", total=1)], "more rows than the 1"),
    "none any more": ([page("{}", total=2), page(total=2)], "1 of its 2 rows, and then none"),
    "another length": ([page("{}", total=3), page("{}", total=2)], "has 2 rows, and had 3"),
    "without end": ([page("{}", total=1 << 40)], "at most 1000000"),
}


@pytest.mark.parametrize("name", LIES)
def test_what_is_no_page_of_rows_is_named(name):
    given, why = LIES[name]
    pages = RowPages()

    with pytest.raises(PluginError) as refused:
        for one in given:
            pages.add(one)
    assert why in str(refused.value)


def test_rows_are_bounded_together(monkeypatch):
    monkeypatch.setattr(suite, "BYTES_MAX", 1000)
    pages = RowPages()
    text = json.dumps({"prompt": "x" * 700})
    pages.add(page(text, total=5))

    with pytest.raises(PluginError, match="its rows are more than"):
        pages.add(page(text, total=5))


def test_a_failure_of_rows_has_its_owner_and_names_the_plugin(tmp_path):
    lost = contract.Failure(owner=contract.OWNER_INFRASTRUCTURE, message="no shelf")
    with pytest.raises(InfrastructureError, match="no shelf"):
        RowPages().add(page(total=0, failure=lost))

    body = """
        class Quiz:
            def rows(self, split):
                raise KeyError(split)
            def score(self, *a):
                return []
        serve(evaluation=Quiz)
    """
    plugin = read_plugin(write(tmp_path / "quiz", body, kind="evaluation"))
    with pytest.raises(
        DataError, match=r"plugin tried 1\.0\.0, rows of report: KeyError: 'report'"
    ):
        read_rows(plugin, {}, "report")


def test_rows_that_are_others_each_time_break_the_contract(tmp_path):
    body = """
        import os
        class Quiz:
            def rows(self, split):
                return [{"prompt": str(os.getpid())}]
            def score(self, prompts, completions, rows):
                return [0.0] * len(completions)
        serve(evaluation=Quiz)
    """
    folder = write(tmp_path / "quiz", body, kind="evaluation")
    found = {one.name: one.why for one in check_plugin(folder, {}) if not one.has_passed}

    assert set(found) == {"gives the same rows"}
    assert "started again" in found["gives the same rows"]


RUN = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "asked"},
    "spec": {
        "model": {"uri": "rollout://tiny-agent"},
        "code": {"path": "code"},
        "evaluate": {},
        "evaluations": [
            {
                "name": "quiz",
                "suite": {
                    "plugin": {"path": "quiz", "parameters": [{"name": "word", "value": ""}]}
                },
                "split": "Selection",
                "maxNewTokens": 4,
            }
        ],
    },
}


def test_a_cluster_and_a_candidate_refuse_it():
    spec = RolloutRunSpec.model_validate(RUN["spec"])
    field = "spec.evaluations[0].suite.plugin"
    found = {(one.field, one.reason) for one in check_spec(spec, Facts(platform="cluster"))}

    assert (field, "NotSupported") in found
    assert not list(check_spec(spec, Facts(platform="local")))


@pytest.mark.usefixtures("warm_starts")
def test_a_run_is_measured_by_it(tmp_path, monkeypatch):
    write(
        tmp_path / "code" / "quiz",
        QUIZ,
        kind="evaluation",
        parameters=[{"name": "word", "default": "a"}],
    )
    (tmp_path / "run.yaml").write_text(json.dumps(RUN))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run", "-f", "run.yaml", "--run-dir", "done"])

    assert done.exit_code == 0, (done.output, done.exception)
    shown = CliRunner().invoke(app, ["runs", "show", "done", "--output", "json"])
    assert shown.exit_code == 0, shown.output
    (outcome,) = json.loads(shown.stdout)["evaluations"]
    assert (outcome["name"], outcome["num_prompts"], outcome["last"]["value"]) == ("quiz", 3, 1.0)
