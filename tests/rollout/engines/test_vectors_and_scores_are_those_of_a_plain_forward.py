"""A vector is the model's own states, read as its files say; a score its head's number, whatever lies beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from rollout.engines.pooled.module import (
    PooledInput,
    PooledModule,
    activate,
    finish_vectors,
    pool,
)
from rollout.errors import EngineError, SpecError
from rollout.models.pooled import choose_task, read_pooled
from rollout.models.resolve import resolve_model
from rollout.rendering.pairs import server_template
from rollout.rendering.template import compile_template, render_pair
from rollout.rendering.tokenizer import load_tokenizer

sys.path.insert(0, str(Path(__file__).parent))

from pooled_models import copy_model, edit_config, write_encoder, write_modules, write_reward_model

ROWS = st.lists(st.lists(st.integers(4, 60), min_size=1, max_size=12), min_size=1, max_size=5)
DRAWN = settings(
    deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pooled")
    uri = "rollout://tiny-qwen2?hidden=32&layers=2&heads=2&context=64"
    causal = resolve_model(uri, cache_dir=root / "cache").path
    return {
        "causal": causal,
        "mean": write_modules(copy_model(causal, root / "mean", is_matryoshka=True), "mean"),
        "plain": write_modules(copy_model(causal, root / "plain"), "last", normalise=False),
        "reward": write_reward_model(causal, root / "reward"),
        "unpadded": write_reward_model(causal, root / "unpadded", pad_token_id=None),
        "encoder": write_encoder(root / "encoder"),
        "ranker": write_encoder(root / "ranker", labels=1),
        "classes": write_encoder(root / "classes", labels=3),
    }


@pytest.fixture(scope="module")
def modules(folders):
    tasks = {name: choose_task(folder) for name, folder in folders.items()}
    assert tasks.pop("causal") == "generate"
    facts = {name: read_pooled(folders[name], task) for name, task in tasks.items()}
    facts["causal"] = read_pooled(folders["causal"], "embed")
    return {name: (one, PooledModule(folders[name], one)) for name, one in facts.items()}


def plain_vector(folder, ids, facts):
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    read = {"last": states[-1], "cls": states[0], "mean": states.mean(dim=0)}[facts.pooling]
    return read / read.norm() if facts.normalised else read


@DRAWN
@given(rows=ROWS, name=st.sampled_from(["causal", "mean", "plain", "encoder"]))
def test_a_vector_is_a_plain_forwards_and_no_neighbours(folders, modules, rows, name):
    facts, module = modules[name]
    found = module.compute([PooledInput(ids=tuple(row)) for row in rows])
    found = finish_vectors(found, normalised=facts.normalised, dimensions=None)
    for row, ids in zip(found, rows, strict=True):
        torch.testing.assert_close(row, plain_vector(folders[name], ids, facts), atol=1e-5, rtol=0)


@DRAWN
@given(rows=ROWS, name=st.sampled_from(["reward", "unpadded", "ranker", "classes"]))
def test_a_score_is_a_plain_forwards_and_no_neighbours(folders, modules, rows, name):
    from transformers import AutoModelForSequenceClassification

    _, module = modules[name]
    found = module.compute([PooledInput(ids=tuple(row)) for row in rows])
    model = AutoModelForSequenceClassification.from_pretrained(folders[name]).eval()
    for row, ids in zip(found, rows, strict=True):
        with torch.no_grad():
            theirs = model(input_ids=torch.tensor([ids])).logits[0]
        torch.testing.assert_close(row, theirs, atol=1e-5, rtol=0)


def test_what_the_files_say_is_how_a_vector_is_read(modules):
    said = {name: (facts.pooling, facts.normalised) for name, (facts, _) in modules.items()}
    assert said["causal"] == ("last", True)
    assert said["mean"] == ("mean", True)
    assert said["plain"] == ("last", False)
    assert said["encoder"] == ("cls", True)
    assert modules["mean"][0].dimensions == ()
    assert modules["causal"][0].dimensions is None


def test_a_vector_is_cut_before_it_is_normalised():
    vectors = torch.tensor([[3.0, 4.0, 12.0]])
    cut = finish_vectors(vectors, normalised=True, dimensions=2)
    torch.testing.assert_close(cut, torch.tensor([[0.6, 0.8]]))


def test_what_is_not_a_number_behind_a_sequence_does_not_reach_its_mean():
    hidden = torch.tensor([[[1.0], [3.0], [float("nan")]]])
    assert pool(hidden, torch.tensor([2]), "mean").tolist() == [[2.0]]


def test_shares_of_labels_are_one_together():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    assert activate(logits, "softmax").sum().item() == pytest.approx(1.0)
    assert activate(logits, "none") is logits


def test_a_folder_whose_head_is_missing_is_refused_and_not_drawn_at_random(folders, tmp_path):
    folder = copy_model(folders["reward"], tmp_path / "headless")
    tensors = load_file(folder / "model.safetensors")
    del tensors["score.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(SpecError, match=r"no score\.weight"):
        choose_task(folder)
    ranker = copy_model(folders["ranker"], tmp_path / "ranker")
    tensors = load_file(ranker / "model.safetensors")
    del tensors["classifier.weight"]
    save_file(tensors, ranker / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"lack classifier\.weight"):
        PooledModule(ranker, read_pooled(ranker, "score"))


@pytest.mark.parametrize(
    ("task", "name", "said"),
    [
        ("score", "causal", "no reward model"),
        ("embed", "reward", "can score"),
        ("generate", "reward", "can score"),
        ("generate", "encoder", "no text"),
    ],
)
def test_a_task_that_a_model_is_not_for_is_refused(folders, task, name, said):
    with pytest.raises(SpecError, match=said):
        choose_task(folders[name], task)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("weightedmean", "got weightedmean"),
        ("pooling_mode_max_tokens", "got pooling_mode_max_tokens"),
    ],
)
def test_a_pooling_that_is_not_known_is_refused_by_name(folders, tmp_path, change, said):
    folder = copy_model(folders["causal"], tmp_path / "odd")
    write_modules(folder, change)
    if not change.startswith("pooling"):
        path = folder / "1_Pooling" / "config.json"
        path.write_text(json.dumps({"pooling_mode": change}))
    with pytest.raises(SpecError, match=said):
        choose_task(folder)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "[1]",
        '[{"type": "x.Dense"}]',
        '[{"type": "Transformer"}, {"type": "Pooling", "path": "../.."}]',
    ],
)
def test_broken_modules_are_refused(folders, tmp_path, content):
    folder = write_modules(copy_model(folders["causal"], tmp_path / "broken"))
    (folder / "modules.json").write_text(content)
    with pytest.raises(SpecError):
        choose_task(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_position_embeddings": "many"},
        {"max_position_embeddings": None},
        {"matryoshka_dimensions": ["a"]},
    ],
)
def test_a_configuration_that_says_nothing_is_refused_by_its_field(folders, tmp_path, fields):
    folder = edit_config(copy_model(folders["causal"], tmp_path / "odd"), **fields)
    with pytest.raises(SpecError, match=next(iter(fields))):
        read_pooled(folder, "embed")


def test_a_server_is_shown_a_pair_as_the_reward_model_was_trained(folders):
    from rollout.rendering.build import build_renderer
    from rollout.types import Message

    tokenizer = load_tokenizer(folders["reward"])
    template = compile_template(server_template(folders["reward"]))
    shown = render_pair(template, "3+4=", "7", tokenizer.specials)
    said = (Message(role="user", content="3+4="), Message(role="assistant", content="7"))
    ours = build_renderer(folders["reward"]).render_training(said)[0]
    assert tokenizer.encode_whole(shown) == ours
