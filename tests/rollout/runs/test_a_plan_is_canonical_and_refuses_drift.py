"""A plan holds everything a run would use; edited or drifted, it is refused."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from rollout.common.quantities import parse_quantity
from rollout.errors import DataError, SpecError
from rollout.models.files import digest_model
from rollout.models.resolve import resolve_model
from rollout.models.scoring import write_score_config
from rollout.runs.manifest import load_documents, load_folder_or_file
from rollout.runs.plan import build_plan, documents_of_plan, read_plan, render_plan, write_plan
from rollout.runs.plan.lock import differences, digest_of

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
MANIFEST = """\
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {{name: sft}}
spec:
  model: {{uri: "rollout://tiny-qwen2"}}
  train:
    algorithm: {{sft: {{batchSize: 2}}}}
    data: {{jsonl: {{uri: {data}, promptField: q, answerField: a}}}}
    maxSteps: 2
"""


@pytest.fixture
def manifest(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"q": f"{i}", "a": f"{i}"}) + "\n" for i in range(8)))
    path = tmp_path / "run.yaml"
    path.write_text(MANIFEST.format(data=data.name))
    return path


@pytest.fixture(scope="module")
def sample_plan():
    return build_plan(load_folder_or_file(SAMPLES / "gsm8k-grpo"), offline=True)


def test_the_gsm8k_manifest_passes_a_plan_without_a_network(sample_plan):
    [run] = sample_plan.runs
    assert run.arithmetic["samplesPerRankAndUpdate"] == 32
    assert {item.field for item in run.unresolved} == {
        "spec.code",
        "spec.model.uri",
        "spec.storage.uri",
        "spec.train.data.huggingFace.path",
        "spec.evaluations[0].suite.builtin",
    }
    assert set(run.memory) == {"learner", "actor"}


def test_the_text_is_canonical(sample_plan):
    text = render_plan(sample_plan)
    content = json.loads(text)
    assert render_plan(sample_plan) == text
    assert content["digest"] == digest_of(content)
    assert list(content) == sorted(content)


def test_an_edited_plan_is_refused(sample_plan, tmp_path):
    path = tmp_path / "plan.lock"
    write_plan(sample_plan, path)
    path.write_text(path.read_text().replace("gsm8k-grpo", "gsm8k-grpx"))
    with pytest.raises(SpecError, match="edited after it was made"):
        read_plan(path)


def test_a_plan_of_unchanged_inputs_gives_its_manifest_back(manifest, tmp_path):
    lock = tmp_path / "plan.lock"
    write_plan(build_plan(load_documents(manifest), offline=False), lock)
    [document] = documents_of_plan(lock)
    assert document.data["metadata"]["name"] == "sft"


def test_changed_data_is_drift(manifest, tmp_path):
    lock = tmp_path / "plan.lock"
    plan = build_plan(load_documents(manifest), offline=False)
    assert plan.runs[0].resolved["numRows"] == 8
    write_plan(plan, lock)
    data = tmp_path / "data.jsonl"
    data.write_text(data.read_text().replace('"7"', '"8"'))
    with pytest.raises(SpecError, match=r"resolved\.dataDigests"):
        documents_of_plan(lock)


FURTHER = {
    "ppo": {
        "spec.train.reference": "reference",
        "spec.train.algorithm.ppo.critic.model": "critic",
        "spec.train.rewards[0].model": "judge",
    },
    "distill": {"spec.train.algorithm.distill.teacher": "teacher"},
}
TRAIN = {
    "ppo": """\
    algorithm: {ppo: {promptsPerStep: 2, klCoefficient: "0.1", critic: {model: {uri: file://critic}}}}
    reference: {uri: file://reference}
    rewards: [{model: {uri: file://judge}}]
""",
    "distill": "    algorithm: {distill: {promptsPerStep: 2, teacher: {uri: file://teacher}}}\n",
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The smallest model there is, resolved once."""
    return resolve_model(
        "rollout://tiny-qwen2?hidden=32&layers=1&heads=2",
        cache_dir=tmp_path_factory.mktemp("models"),
    ).path


def make_scorer(folder: Path) -> None:
    """Make a causal model's folder a reward model's."""
    write_score_config(folder, 0)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {**tensors, "score.weight": np.zeros((1, 32), np.float32)}, folder / "model.safetensors"
    )


@pytest.mark.parametrize("algorithm", FURTHER)
def test_a_changed_further_model_is_drift(algorithm, tiny, manifest):
    folders = {field: manifest.parent / name for field, name in FURTHER[algorithm].items()}
    for folder in folders.values():
        shutil.copytree(tiny, folder)
        if folder.name == "judge":
            make_scorer(folder)
    text = manifest.read_text().replace("rollout://tiny-qwen2", tiny.as_uri())
    manifest.write_text(text.replace("    algorithm: {sft: {batchSize: 2}}\n", TRAIN[algorithm]))
    lock = manifest.parent / "plan.lock"
    before = {field: digest_model(folder) for field, folder in folders.items()}
    plan = build_plan(load_documents(manifest), offline=False)
    assert plan.runs[0].resolved["models"] == {
        field: {"digest": digest, "revision": None} for field, digest in before.items()
    }
    write_plan(plan, lock)

    for folder in folders.values():
        config = folder / "tokenizer_config.json"
        config.write_text(config.read_text() + " ")

    with pytest.raises(SpecError, match="plan again if that is meant") as told:
        documents_of_plan(lock)
    for field, folder in folders.items():
        line = f"{field}.digest: planned '{before[field]}', now '{digest_model(folder)}'"
        assert f"resolved.models.{line}" in str(told.value)


def test_a_further_model_of_the_hub_stays_open_without_a_network(manifest, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text = manifest.read_text().replace("sft: {batchSize: 2}", "dpo: {batchSize: 2}")
    manifest.write_text(text + "    reference: {uri: hf://nobody/nothing-of-that-name}\n")

    [run] = build_plan(load_documents(manifest), offline=True).runs

    assert [item.field for item in run.unresolved] == ["spec.train.reference.uri"]


def test_a_missing_data_file_is_refused_when_planning(manifest, tmp_path):
    (tmp_path / "data.jsonl").unlink()
    with pytest.raises(DataError, match="does not exist"):
        build_plan(load_documents(manifest), offline=False)


def test_two_plans_of_one_manifest_are_equal(manifest):
    first, second = (build_plan(load_documents(manifest), offline=False) for _ in range(2))
    assert asdict(first) == asdict(second)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.dictionaries(st.text(min_size=1, max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(json_values)
def test_a_value_does_not_differ_from_itself(value):
    assert differences(value, json.loads(json.dumps(value))) == []


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(-9, 9), max_size=4), st.data())
def test_one_changed_leaf_is_one_difference(old, data):
    key = data.draw(st.sampled_from(sorted(old) or ["new"]))
    new = {**old, key: old.get(key, 0) + 1}
    assert differences({"in": old}, {"in": new}) == [(f"in.{key}", old.get(key), new[key])]


@pytest.mark.parametrize(
    ("text", "size"), [("80Gi", 80 * 2**30), ("1k", 1000), ("24e9", 24 * 10**9)]
)
def test_quantities_are_read_as_kubernetes_does(text, size):
    assert parse_quantity(text) == size


def test_a_data_set_of_the_hub_stays_open_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = tmp_path / "run.yaml"
    hub = "{huggingFace: {path: nobody/nothing-of-that-name}}"
    text = MANIFEST.format(data="data.jsonl")
    jsonl = "{jsonl: {uri: data.jsonl, promptField: q, answerField: a}}"
    path.write_text(text.replace(jsonl, hub))

    [run] = build_plan(load_documents(path), offline=True).runs

    assert [item.field for item in run.unresolved] == ["spec.train.data.huggingFace.path"]
    assert "nobody/nothing-of-that-name" in run.unresolved[0].reason


def test_a_broken_line_is_told_without_a_network_too(manifest):
    (manifest.parent / "data.jsonl").write_text("not json\n")

    with pytest.raises(DataError, match=r"data\.jsonl:1: not JSON"):
        build_plan(load_documents(manifest), offline=True)
