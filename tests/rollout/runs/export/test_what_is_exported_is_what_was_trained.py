"""A folder that was exported holds the very weights of the run, for transformers and for PEFT."""

import json

import pytest
import torch
from export_kit import GRPO, LORA, RM, VLLM, FakeRun, train
from safetensors.torch import load_file

from rollout.runs.export.choose import VersionSelector
from rollout.runs.export.export import Export, export_model
from rollout.weights.digest import digest_tensors

IDS = torch.tensor([[5, 6, 7, 8, 9]])
NEWEST = Export(selector=VersionSelector())


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def learned(tmp_path, base_model, *, spec=None, dtype="Float32", **how):
    """A run of one step, an anchor of it, and the policy that it trained."""
    trained = train(base_model, dtype=dtype, **how)
    run = FakeRun(tmp_path / "runs" / "tiny-1", base_model, dtype=dtype, spec=spec or _spec(how))
    run.begin(train(base_model, dtype=dtype, **how).weights)
    run.commit(trained.weights, masters=trained.masters)
    return run, trained


def _spec(how):
    spec = {"train": RM if how.get("scores") else GRPO}
    if how.get("lora"):
        spec["model"] = {"lora": LORA}
    if how.get("served"):
        spec["actors"] = VLLM
    return spec


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
@pytest.mark.parametrize("shard_bytes", [1, 20_000, 5 * 10**9])
def test_transformers_loads_the_learners_own_parameters(tmp_path, base_model, dtype, shard_bytes):
    from transformers import AutoModelForCausalLM

    run, trained = learned(tmp_path, base_model, dtype=dtype)
    export_model(
        run.folder, tmp_path / "out", Export(selector=VersionSelector(), shard_bytes=shard_bytes)
    )

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")

    found = dict(model.named_parameters())
    assert {n: t.dtype for n, t in found.items()} == {
        n: t.dtype for n, t in trained.weights.items()
    }
    assert all(torch.equal(found[name], tensor) for name, tensor in trained.weights.items())
    files = list((tmp_path / "out").glob("*.safetensors"))
    if shard_bytes > 10**6:
        assert [one.name for one in files] == ["model.safetensors"]
    else:
        assert len(files) == (len(trained.weights) if shard_bytes == 1 else len(files)) > 2
    if dtype == "Float32":
        assert torch.equal(logits(model), logits(trained.policy.model))


def test_the_digest_of_the_folder_is_that_of_the_runs_version(tmp_path, base_model):
    run, trained = learned(tmp_path, base_model)

    lineage = export_model(run.folder, tmp_path / "out", NEWEST).lineage

    assert lineage.weights == lineage.version == digest_tensors(trained.weights)
    assert (lineage.step, lineage.chain, lineage.dtype) == (1, "blake3:c1", "Float32")
    assert set(lineage.tensors) == set(trained.weights)


def test_another_number_format_is_the_cast_of_torch(tmp_path, base_model):
    run, trained = learned(tmp_path, base_model)

    exported = export_model(
        run.folder, tmp_path / "out", Export(selector=VersionSelector(), dtype="BFloat16")
    )

    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(found[n], t.to(torch.bfloat16)) for n, t in trained.weights.items())
    assert exported.lineage.weights == digest_tensors(found) != exported.lineage.version
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_tokenizer_generation_and_template_come_with_it(tmp_path, base_model):
    from transformers import AutoTokenizer, GenerationConfig

    run, _ = learned(tmp_path, base_model)
    export_model(run.folder, tmp_path / "out", NEWEST)

    ours, theirs = (AutoTokenizer.from_pretrained(one) for one in (tmp_path / "out", base_model))
    assert ours("1+2=").input_ids == theirs("1+2=").input_ids
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == 2
    assert ours.chat_template is None, "the run was trained with chatTemplate: plain"


@pytest.mark.parametrize("served", [False, True])
def test_an_adapter_is_a_folder_that_peft_loads(tmp_path, base_model, served):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run, trained = learned(tmp_path, base_model, lora=True, served=served)
    lineage = export_model(run.folder, tmp_path / "out", NEWEST).lineage

    base = AutoModelForCausalLM.from_pretrained(base_model)
    before = logits(base)
    model = PeftModel.from_pretrained(base, str(tmp_path / "out"))

    assert lineage.form == "adapter"
    assert not (tmp_path / "out" / "config.json").exists(), "it is no whole model"
    held = {n.replace(".default.", "."): p for n, p in model.named_parameters() if "lora_" in n}
    assert set(held) == set(lineage.tensors)
    ours = {n.replace(".default.", "."): t for n, t in trained.masters.items()}
    assert all(torch.equal(held[f"base_model.model.{name}"], t) for name, t in ours.items())
    torch.testing.assert_close(logits(model), logits(trained.policy.model), atol=1e-5, rtol=1e-4)
    assert (logits(model) - before).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
@pytest.mark.parametrize("served", [False, True])
def test_a_merged_adapter_is_the_model_that_the_learner_computes_with(
    tmp_path, base_model, served, dtype
):
    run, _ = learned(tmp_path, base_model, lora=True, served=served, dtype=dtype)
    dense = train(base_model, lora=True, dtype=dtype).weights

    lineage = export_model(
        run.folder, tmp_path / "out", Export(selector=VersionSelector(), merge=True)
    ).lineage

    found = load_file(tmp_path / "out" / "model.safetensors")
    assert lineage.form == "merged"
    assert set(found) == set(dense)
    if not served:
        assert digest_tensors(found) == digest_tensors(dense) == lineage.version
    for name, tensor in dense.items():
        torch.testing.assert_close(found[name], tensor)


def test_a_base_in_several_files_is_merged_with(tmp_path, base_model):
    import shutil

    from rollout.weights.merging import as_stored, open_weights
    from rollout.weights.shards import write_shards

    split = tmp_path / "split"
    shutil.copytree(base_model, split)
    (split / "model.safetensors").unlink()
    with open_weights([base_model / "model.safetensors"]) as weights:
        write_shards(split, as_stored(weights, "F32"), stem="model", size_max=10_000)
    run, _ = learned(tmp_path, split, lora=True, served=True)

    export_model(run.folder, tmp_path / "out", Export(selector=VersionSelector(), merge=True))

    found = load_file(tmp_path / "out" / "model.safetensors")
    for name, tensor in train(base_model, lora=True).weights.items():
        torch.testing.assert_close(found[name], tensor)


@pytest.mark.parametrize("lora", [False, True])
def test_a_reward_model_scores_as_the_learner_does(tmp_path, base_model, lora):
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    from rollout.learner.model.scorer import answer_scores

    run, trained = learned(tmp_path, base_model, scores=True, lora=lora)
    lineage = export_model(run.folder, tmp_path / "out", NEWEST).lineage

    if lora:
        base = AutoModelForSequenceClassification.from_pretrained(base_model, num_labels=1)
        model = PeftModel.from_pretrained(base, str(tmp_path / "out"))
        model.config.pad_token_id = base.config.pad_token_id = run.config.resolved.pad_token_id
    else:
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    answers = ((11, 12, 13), (14,))
    ours = answer_scores(trained.policy.model, [((5, 6, 7), answers)], torch.device("cpu"))
    theirs = [
        float(model(input_ids=torch.tensor([[5, 6, 7, *one]])).logits[0, 0].detach())
        for one in answers
    ]
    assert lineage.scores
    assert ours.detach().tolist() == pytest.approx(theirs, rel=1e-4, abs=1e-5)
