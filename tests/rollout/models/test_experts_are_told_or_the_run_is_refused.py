"""A mixture of experts is reinforced where the engine tells which experts it took; all else is refused at the plan."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

from rollout.entrypoints.resolve import look_at_models
from rollout.errors import SpecError
from rollout.learner.model.policy import load_model
from rollout.models.experts.families import ROUTED, ExpertShape, expert_shape, router_shape
from rollout.models.resolve import resolve_model
from rollout.models.shapes import parse_shape_config, read_shape
from rollout.runs.manifest import Document
from rollout.runs.prepare import prepare_run
from rollout.runs.resolve import ResolveRequest
from rollout_api.v1alpha1.pods.roles import CAPABILITIES

GRPO = {
    "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
    "environment": {"builtin": {"name": "arithmetic"}},
    "rewards": [{"builtin": {"name": "exact-match"}}],
    "maxSteps": 1,
}
SFT = {
    "algorithm": {"sft": {}},
    "data": {"jsonl": {"uri": "rows.jsonl", "answerField": "completion"}},
    "maxSteps": 1,
}
TINY = "rollout://tiny-qwen3-moe?hidden=32&layers=3&heads=2&experts=6&top_k=3"
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 6,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 64,
}


@pytest.fixture
def ask(tmp_path):
    """A look at a model folder whose configuration says something else, too."""
    folder = tmp_path / "model"

    def look(train, engine=None, uri=TINY, targets=(), **changes):
        shutil.copytree(Path(resolve_model(uri).path), folder)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        spec = {"model": {"uri": f"file://{folder}"}, "train": train}
        if targets:
            spec["model"]["lora"] = {"targets": targets}
        if engine:
            spec["actors"] = {"engine": {engine: {}}}
        data = {
            "apiVersion": "rollout.dev/v1alpha1",
            "kind": "RolloutRun",
            "metadata": {"name": "experts"},
            "spec": spec,
        }
        document = Document(source=str(tmp_path / "run.yaml"), data=data, lines={(): 1})
        prepared = prepare_run(document)
        wanted = prepared.spec.model_dump(mode="json", exclude_none=True)
        return look_at_models(ResolveRequest(spec=wanted))

    return look


def build(kind, **sizes):
    cls = getattr(transformers, NAMES[kind])
    known = set(cls.config_class().to_dict())
    return cls(cls.config_class(**{k: v for k, v in (SIZES | sizes).items() if k in known}))


def test_an_engine_that_tells_them_samples_for_reinforcement(ask):
    assert ask(GRPO, "embedded").experts == ExpertShape(layers=3, experts=6, top_k=3)


def test_an_engine_that_does_not_tell_them_is_refused_with_what_can_be_done_instead(ask):
    with pytest.raises(
        SpecError,
        match=r"algorithm.grpo: .*engine vllm does not say.*Model Runner V2.*not proven.*engine.embedded.*dense model.*sft, dpo, kto",
    ):
        ask(GRPO, "vllm")


def test_every_engine_says_whether_it_tells_them():
    assert {name: one.expert_routes for name, one in CAPABILITIES.items()} == {
        "embedded": True,
        "vllm": False,
    }


@pytest.mark.parametrize("kind", ["deepseek_v3", "gpt_oss", "dbrx"])
def test_a_type_whose_choice_is_not_known_is_refused_by_name(ask, kind):
    with pytest.raises(SpecError, match=rf"algorithm.grpo.*how {kind} chooses.*mixtral.*dense"):
        ask(GRPO, model_type=kind)


def test_layers_that_are_not_packed_are_refused(ask):
    with pytest.raises(SpecError, match=r"algorithm.grpo.*packed rows only.*linear_attention"):
        ask(GRPO, layer_types=["linear_attention"] * 3)


def test_more_experts_of_a_token_than_there_are_is_refused(ask):
    with pytest.raises(SpecError, match="6 experts a layer and takes 7"):
        ask(GRPO, num_experts_per_tok=7)


@pytest.mark.parametrize(
    ("train", "uri"), [(SFT, TINY), (GRPO, "rollout://tiny-qwen2?hidden=32&layers=1&heads=2")]
)
def test_rows_are_learned_from_and_a_dense_model_is_reinforced_without_a_word_of_experts(
    ask, train, uri
):
    assert ask(train, uri=uri).experts is None


BESIDE = [{"model_type": "glm4_moe"}, {"model_type": "deepseek_v3"}, {"mlp_only_layers": [0]}]


@pytest.mark.parametrize("changes", BESIDE, ids=str)
def test_an_adapter_that_peft_would_read_as_one_of_experts_is_refused_with_what_to_write(
    ask, changes
):
    with pytest.raises(
        SpecError, match=r"lora.targets: Mlp: .* has experts.*targets: \[Attention\]"
    ):
        ask(SFT, targets=["Attention", "Mlp"], **changes)


@pytest.mark.parametrize("changes", BESIDE, ids=str)
def test_an_adapter_on_attention_is_taken_beside_experts(ask, changes):
    assert ask(SFT, targets=["Attention"], **changes).experts is None


def test_an_adapter_is_taken_where_all_of_the_mlp_is_experts(ask):
    assert ask(SFT, targets=["Attention", "Mlp"]).experts is None


@pytest.mark.parametrize("kind", ROUTED)
def test_a_built_model_has_the_experts_that_its_configuration_tells(kind):
    model = build(kind)

    assert expert_shape(model.config.to_dict()) == router_shape(model)


@pytest.mark.parametrize("changes", [{"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}])
@pytest.mark.parametrize("kind", ["qwen2_moe", "qwen3_moe"])
def test_dense_layers_choose_nothing(kind, changes):
    model = build(kind, **changes)

    assert expert_shape(model.config.to_dict()) == router_shape(model)
    assert 0 < router_shape(model).layers < 4


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "qwen3_moe"])
def test_all_experts_are_counted(kind):
    model = build(kind, mlp_only_layers=[1])

    found = parse_shape_config(model.config.to_dict()).num_parameters

    assert found == sum(one.numel() for one in model.parameters())


def test_the_tiny_mixture_is_one_that_transformers_loads_whole():
    folder = Path(resolve_model(TINY).path)

    model = load_model(folder)

    assert router_shape(model) == ExpertShape(layers=3, experts=6, top_k=3)
    assert read_shape(folder).num_parameters == sum(one.numel() for one in model.parameters())
    assert float(model.model.layers[2].mlp.experts.down_proj.detach().std()) == pytest.approx(
        0.02, rel=0.1
    )


@pytest.mark.parametrize("wrong", ["experts=1", "experts=x", "top_k=9", "top_k=0", "width=3"])
def test_a_tiny_mixture_that_cannot_be_is_refused_by_the_parameter(wrong, tmp_path):
    with pytest.raises(SpecError, match=rf"tiny-qwen3-moe: .*{wrong.partition('=')[0]}"):
        resolve_model(f"rollout://tiny-qwen3-moe?{wrong}", cache_dir=tmp_path)
