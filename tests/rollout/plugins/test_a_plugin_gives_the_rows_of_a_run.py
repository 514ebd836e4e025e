"""Data that is a plugin: its rows are checked and had once, a run trains on them, and other rows are refused."""

import json

import pytest
from plugin_kit import write
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.data.build import build_source
from rollout.errors import DataError, SpecError
from rollout.plugins.sidecar.kinds.data import ServedRows
from rollout_api.checks import check_spec
from rollout_api.checks.facts import Facts
from rollout_api.v1alpha1.data import Data
from rollout_api.v1alpha1.run import RolloutRunSpec

pytestmark = pytest.mark.process

ROWS = """
    def rows(split, word="tea", count="6"):
        return [{"prompt": f"{split} {n}", "answer": f"{word} {n}"} for n in range(int(count))]
    serve(data=rows)
"""
PARAMETERS = [{"name": "word", "default": "tea"}, {"name": "count", "default": "6"}]


def served(folder, body=ROWS, **more):
    return write(folder, body, kind="data", parameters=PARAMETERS, **more)


def named(path="rows", **fields):
    return Data.model_validate({"plugin": {"path": path, **fields}})


def opened(place, data=None, **more) -> ServedRows:
    return build_source(data or named(), folders=[place], **more)


def test_rows_come_in_order_under_a_digest_of_what_they_are(tmp_path):
    served(tmp_path / "rows")
    found = opened(tmp_path)
    given = [{"name": "count", "value": "2500"}]
    many = opened(tmp_path, named(split="test", parameters=given))

    assert [one["prompt"] for one in found.rows([5, 0])] == ["train 5", "train 0"]
    assert [one["answer"] for one in many.rows(range(2500))] == [f"tea {n}" for n in range(2500)]
    assert opened(tmp_path).digest == found.digest != many.digest


def test_the_order_of_the_fields_of_a_row_changes_no_digest(tmp_path):
    body = """
        FIELDS = {"prompt": "a", "answer": "b", "more": {"is": "c", "was": "d"}}
        def turned(row):
            return {name: turned(row[name]) for name in reversed(row)} if isinstance(row, dict) else row
        serve(data=lambda split, **_: [turned(FIELDS) if split == "test" else FIELDS])
    """
    served(tmp_path / "rows", body)

    assert opened(tmp_path).digest == opened(tmp_path, named(split="test")).digest


ROWS_OF_WHICH_SOME_ARE_BAD = """
    GIVEN = [{"prompt": "a", "answer": "b"}, {"prompt": "c"}, {"answer": "d"}, {"prompt": ["e"], "answer": "f"},
             {"prompt": "g", "answer": "h", "n": 10 ** 30}]
    serve(data=lambda split, word="", count="": GIVEN)
"""


def test_rows_without_the_fields_that_are_learned_from_are_named_or_counted(tmp_path):
    served(tmp_path / "rows", ROWS_OF_WHICH_SOME_ARE_BAD)

    with pytest.raises(DataError) as refused:
        opened(tmp_path, target="answer")
    assert "plugin tried 1.0.0, rows of train: 4 of 5 records cannot be used" in str(refused.value)
    assert "row 1: has no answer" in str(refused.value)
    skipping = Data.model_validate({"plugin": {"path": "rows"}, "onBadRecord": "Skip"})
    found = opened(tmp_path, skipping, target="answer")
    assert (len(found), found.bad.num_records) == (1, 4)


def test_another_kind_and_a_plugin_that_is_nowhere_are_refused(tmp_path):
    write(tmp_path / "marks", "serve(reward=len)")
    with pytest.raises(SpecError, match="is of kind reward, not data"):
        opened(tmp_path, named("marks"))
    with pytest.raises(SpecError, match=r"there is no plugin\.yaml in 'nowhere'"):
        opened(tmp_path, named("nowhere"))


RUN = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "fed"},
    "spec": {
        "model": {"uri": "rollout://tiny-agent"},
        "code": {"path": "code"},
        "train": {
            "algorithm": {"sft": {"batchSize": 2}},
            "data": {"plugin": {"path": "rows"}},
            "maxSteps": 2,
        },
    },
}


def spec_of(**train):
    document = {**RUN["spec"], "train": {**RUN["spec"]["train"], **train}}
    return RolloutRunSpec.model_validate(document)


def problems(spec, platform="local"):
    return {(one.field, one.reason) for one in check_spec(spec, Facts(platform=platform))}


def test_a_cluster_and_inference_refuse_it_by_name():
    field = "spec.train.data.plugin"
    assert (field, "NotSupported") in problems(spec_of(), "cluster")
    assert not problems(spec_of())
    without = RolloutRunSpec.model_validate({**spec_of().model_dump(), "code": None})
    assert (f"{field}.path", "MissingCode") in problems(without)
    infer = {"model": RUN["spec"]["model"], "code": RUN["spec"]["code"]}
    infer["infer"] = {"data": {"plugin": {"path": "rows"}}, "output": {"uri": "out"}}
    asked = RolloutRunSpec.model_validate(infer)
    assert ("spec.infer.data.plugin", "NotSupported") in problems(asked)


def called(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.slow
def test_a_run_trains_on_its_rows_goes_on_with_them_and_refuses_others(tmp_path, monkeypatch):
    folder = served(tmp_path / "code" / "rows", concurrency=1)
    (tmp_path / "run.yaml").write_text(json.dumps(RUN))
    monkeypatch.chdir(tmp_path)
    planned = called("plan", "-f", "run.yaml", "--output", "json")
    assert planned.exit_code == 0, (planned.output, planned.exception)
    resolved = json.loads(planned.stdout)["runs"][0]["resolved"]
    assert resolved["numRows"] == 6
    assert resolved["dataDigests"]["train"] == opened(tmp_path / "code", target="answer").digest
    assert set(resolved["pluginDigests"]) == {"rows"}

    done = called("run", "-f", "run.yaml", "--run-dir", "done")
    assert done.exit_code == 0, (done.output, done.exception)
    again = ("run", "-f", "run.yaml", "--run-dir", "done", "--resume", "Latest")
    further = called(*again, "--set", "train.maxSteps=3")
    assert further.exit_code == 0, (further.output, further.exception)

    changed = (folder / "plugin.py").read_text().replace('word="tea"', 'word="milk"')
    (folder / "plugin.py").write_text(changed)
    other = called(*again, "--set", "train.maxSteps=4")
    assert other.exit_code != 0
    assert "plugin rows" in str(other.exception)


@pytest.mark.slow
def test_an_evaluation_asks_its_rows(tmp_path, monkeypatch):
    served(tmp_path / "code" / "rows")
    suite = {"data": {"plugin": {"path": "rows", "split": "test"}}}
    suite["rewards"] = [{"builtin": {"name": "exact-match"}}]
    measured = {"name": "asked", "suite": suite, "maxNewTokens": 2}
    spec = {"model": RUN["spec"]["model"], "code": RUN["spec"]["code"], "evaluate": {}}
    run = {**RUN, "spec": {**spec, "evaluations": [measured]}}
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    monkeypatch.chdir(tmp_path)
    done = called("run", "-f", "run.yaml", "--run-dir", "done")
    assert done.exit_code == 0, (done.output, done.exception)

    shown = called("runs", "show", "done", "--output", "json")
    (outcome,) = json.loads(shown.stdout)["evaluations"]
    assert (outcome["name"], outcome["num_prompts"]) == ("asked", 6)
