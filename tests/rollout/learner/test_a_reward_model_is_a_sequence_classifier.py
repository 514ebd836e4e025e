"""A reward model's weights are those of transformers' sequence classification with one label."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from rollout.errors import SpecError
from rollout.learner.model.policy import load_model
from rollout.learner.model.scorer import answer_scores, load_scorer
from rollout.models.scoring import is_scorer, score_config, write_score_config
from rollout.rendering.tokenizer import load_tokenizer

CPU = torch.device("cpu")
PROMPT, ANSWERS = (5, 6, 7), ((11, 12, 13), (14,), (15, 16, 17, 18, 19))


@pytest.fixture
def reward_folder(model_path, tmp_path):
    """A reward model saved as a run leaves it: the scorer's tensors beside the changed configuration."""
    folder = tmp_path / "reward"
    shutil.copytree(model_path, folder)
    scorer = load_scorer(model_path, seed=4)
    save_file(
        {n: p.detach().clone() for n, p in scorer.named_parameters()}, folder / "model.safetensors"
    )
    write_score_config(folder, load_tokenizer(folder).pad_id)
    return folder


def scores(path) -> torch.Tensor:
    return answer_scores(load_scorer(path, seed=4), [(PROMPT, ANSWERS)], CPU).detach()


def test_plain_transformers_loads_it_and_gives_the_same_scores(reward_folder) -> None:
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(reward_folder)
    assert model.config.num_labels == 1
    theirs = [
        float(model(input_ids=torch.tensor([[*PROMPT, *answer]])).logits[0, 0].detach())
        for answer in ANSWERS
    ]
    assert scores(reward_folder).tolist() == pytest.approx(theirs, rel=1e-5, abs=1e-6)


def test_the_score_is_read_before_padding_as_transformers_does(reward_folder) -> None:
    from transformers import AutoModelForSequenceClassification

    pad = load_tokenizer(reward_folder).pad_id
    model = AutoModelForSequenceClassification.from_pretrained(reward_folder)
    ended = (*ANSWERS[0], pad)
    ids = torch.tensor([[*PROMPT, *ended]])
    theirs = float(model(input_ids=ids).logits[0, 0].detach())
    ours = answer_scores(load_scorer(reward_folder), [(PROMPT, (ended, ANSWERS[0]))], CPU)
    assert ours.tolist() == pytest.approx([theirs, theirs], rel=1e-5, abs=1e-6)


def test_packing_changes_no_score(reward_folder) -> None:
    scorer = load_scorer(reward_folder)
    other = ((9, 8), ((1, 2, 3, 4),))
    packed = answer_scores(scorer, [other, (PROMPT, ANSWERS)], CPU)
    alone = [answer_scores(scorer, [(PROMPT, (answer,))], CPU) for answer in ANSWERS]
    assert torch.allclose(packed[1:], torch.cat(alone), rtol=1e-5, atol=1e-6)


def test_a_new_head_is_drawn_from_the_seed_alone(model_path) -> None:
    heads = [load_scorer(model_path, seed=seed).score.weight.detach() for seed in (1, 1, 2)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    spread = heads[0].std() * (heads[0].numel() + 1) ** 0.5
    assert 0.6 < float(spread) < 1.4


def test_a_head_that_is_there_is_kept_whatever_the_seed(reward_folder) -> None:
    assert torch.equal(
        load_scorer(reward_folder, seed=9).score.weight, load_scorer(reward_folder).score.weight
    )


def test_a_missing_head_is_named(model_path, reward_folder) -> None:
    with pytest.raises(SpecError, match=r"no reward model: its weights have no score\.weight"):
        load_scorer(model_path)
    path = reward_folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["score.weight"]
    save_file(tensors, path)
    for seed in (None, 3):
        with pytest.raises(SpecError, match=r"no score\.weight"):
            load_scorer(reward_folder, seed)


def test_a_head_of_two_labels_is_refused(reward_folder) -> None:
    path = reward_folder / "model.safetensors"
    tensors = load_file(path)
    tensors["score.weight"] = tensors["score.weight"].repeat(2, 1)
    save_file(tensors, path)
    with pytest.raises(SpecError, match="a reward model has one label"):
        load_scorer(reward_folder)


def test_a_reward_model_is_no_policy(reward_folder) -> None:
    with pytest.raises(SpecError, match="has no language head"):
        load_model(reward_folder)


def test_the_configuration_is_that_of_a_classifier(model_path) -> None:
    config = json.loads((model_path / "config.json").read_text())
    found = score_config(config, 3)
    assert found["architectures"] == ["Qwen2ForSequenceClassification"]
    assert (found["num_labels"], found["pad_token_id"]) == (1, 3)
    assert is_scorer(found)
    assert not is_scorer(config)
    assert score_config(found, 3) == found


def test_an_architecture_without_a_classifier_is_named(model_path, tmp_path) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(model_path, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["OddForCausalLM"]}))
    with pytest.raises(SpecError, match="no OddForSequenceClassification"):
        load_scorer(folder, seed=1)
