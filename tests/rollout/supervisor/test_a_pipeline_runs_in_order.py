import json

import pytest

from rollout.errors import SpecError
from rollout.runs.manifest import Document
from rollout.runs.pipeline import materialise_model, order_runs, read_snapshot, source_run
from rollout.runs.run_dir import create_run_dir


def document(name: str, source: str | None = None, kind: str = "RolloutRun") -> Document:
    model = {"uri": "rollout://tiny-qwen2"} if source is None else {"fromRun": {"name": source}}
    data = {"kind": kind, "metadata": {"name": name}, "spec": {"model": model}}
    return Document(source="pipeline.yaml", data=data, lines={})


def names(documents) -> list[str]:
    return [one.data["metadata"]["name"] for one in documents]


def test_a_run_comes_after_the_one_it_starts_from():
    assert names(order_runs([document("grpo", "sft"), document("sft")])) == ["sft", "grpo"]


def test_other_kinds_are_left_out():
    both = [document("h100", kind="ClusterRolloutRuntime"), document("sft")]

    assert names(order_runs(both)) == ["sft"]


def test_a_source_outside_the_file_does_not_matter_here():
    assert names(order_runs([document("grpo", "elsewhere")])) == ["grpo"]
    assert source_run(document("grpo", "elsewhere").data) == "elsewhere"


def test_a_circle_is_refused_and_shown():
    with pytest.raises(SpecError, match=r"circle: .*a.*b"):
        order_runs([document("a", "b"), document("b", "a")])


def test_two_runs_of_one_name_are_refused():
    with pytest.raises(SpecError, match="two runs are named 'sft'"):
        order_runs([document("sft"), document("sft")])


def test_a_file_without_a_run_is_refused():
    with pytest.raises(SpecError, match="no RolloutRun"):
        order_runs([document("h100", kind="ClusterRolloutRuntime")])


def test_a_missing_snapshot_is_refused_with_what_there_is(tmp_path):
    run = create_run_dir(tmp_path, "sft")
    (run.snapshots / "Latest.json").write_text(json.dumps({"step": 3}))

    assert read_snapshot(run, "Latest") == {"step": 3}
    with pytest.raises(SpecError, match=r"no snapshot 'Best' \(there: Latest\)"):
        read_snapshot(run, "Best")


def test_a_snapshot_of_another_format_is_refused_with_both_numbers(tmp_path):
    run = create_run_dir(tmp_path, "sft")
    (run.snapshots / "Latest.json").write_text(json.dumps({"state": {"format": 2}}))

    with pytest.raises(
        SpecError, match=r"Latest\.json has format 2, this version of rollout reads 1"
    ):
        read_snapshot(run, "Latest")


def test_a_model_folder_is_made_of_a_configuration_and_weights(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors.index.json", "README.md"):
        (source / name).write_text(name)
    (source / "model.safetensors").write_text("old")
    weights = tmp_path / "object"
    weights.write_text("new")

    for _ in range(2):
        made = materialise_model(config_path=source, weights=weights, target=tmp_path / "model")

    assert {path.name: path.read_text() for path in made.iterdir()} == {
        "config.json": "config.json",
        "tokenizer.json": "tokenizer.json",
        "model.safetensors": "new",
    }
