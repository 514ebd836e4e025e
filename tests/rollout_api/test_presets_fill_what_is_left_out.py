"""Presets: the manifest wins, then the named preset, then the defaults; and everything is told."""

import copy

import pytest

from rollout_api import parse_run, resolve
from rollout_api.checks import check_spec
from rollout_api.presets import DEFAULTS, PRESETS, canonical_json, fill


def run_of(algorithm, *, uri="hf://Qwen/Qwen3-0.6B", **settings):
    spec = {"model": {"uri": uri}, "train": {"algorithm": algorithm, **settings}}
    return spec_of(spec)


def spec_of(spec):
    return parse_run(
        {
            "apiVersion": "rollout.dev/v1alpha1",
            "kind": "RolloutRun",
            "metadata": {"name": "a"},
            "spec": spec,
        }
    ).spec


ARITHMETIC = {
    "algorithm": {"grpo": {}},
    "environment": {"builtin": {"name": "arithmetic"}},
    "rewards": [{"builtin": {"name": "exact-match"}}],
    "maxSteps": 400,
}


@pytest.mark.parametrize(
    ("actors", "replicas"),
    [
        ({"autoscale": {"min": 2, "max": 8}}, 2),
        ({"replicas": 1, "autoscale": {"min": 2, "max": 8}}, 2),  # the schema fills 1 in
        ({"replicas": 5, "autoscale": {"min": 2, "max": 8}}, 5),
        ({"autoscale": {"min": 1, "max": 8}}, 1),
        ({}, 1),
        ({"replicas": 3}, 3),
    ],
)
def test_a_run_with_a_range_starts_at_its_lower_end_unless_it_says_where(actors, replicas):
    run = spec_of({"model": {"uri": "rollout://tiny-adder"}, "train": ARITHMETIC, "actors": actors})

    resolved = resolve(run).spec

    assert check_spec(run) == ()
    assert resolved.actors.replicas == replicas
    assert resolve(resolved).spec == resolved


@pytest.mark.parametrize("replicas", [0, 9])
def test_a_number_outside_the_range_is_refused(replicas):
    actors = {"replicas": replicas, "autoscale": {"min": 2, "max": 8}}
    run = spec_of({"model": {"uri": "rollout://tiny-adder"}, "train": ARITHMETIC, "actors": actors})

    assert "spec.actors.replicas" in {one.field for one in check_spec(run)}


@pytest.mark.parametrize(
    ("algorithm", "rate"),
    [
        ("sft", 2e-5),
        ("rm", 1e-4),
        ("dpo", 1e-6),
        ("ipo", 1e-6),
        ("kto", 1e-6),
        ("grpo", 1e-6),
        ("orpo", 8e-6),
        ("simpo", 1e-6),
    ],
)
def test_the_learning_rate_depends_on_the_algorithm(algorithm, rate):
    resolved = resolve(run_of({algorithm: {}})).spec

    assert resolved.train.optimizer.adamw.learning_rate == rate


@pytest.mark.parametrize(("algorithm", "rate"), [("sft", 3e-3), ("grpo", 3e-4)])
def test_tiny_models_get_rates_that_teach_them_something(algorithm, rate):
    resolved = resolve(run_of({algorithm: {}}, uri="rollout://tiny-adder?seed=3")).spec

    assert resolved.train.optimizer.adamw.learning_rate == rate


def test_the_critic_has_a_learning_rate_of_its_own():
    resolved = resolve(run_of({"ppo": {"critic": {"optimizer": {"adamw": {}}}}})).spec

    assert resolved.train.optimizer.adamw.learning_rate == 1e-6
    assert resolved.train.algorithm.ppo.critic.optimizer.adamw.learning_rate == 1e-5


def test_what_the_manifest_says_is_kept():
    spec = run_of({"grpo": {"clipHigh": "0.28"}}, optimizer={"sgd": {"learningRate": "0.5"}})

    resolved = resolve(spec).spec

    assert resolved.train.algorithm.grpo.clip_high == 0.28
    assert resolved.train.optimizer.sgd.learning_rate == 0.5
    assert resolved.train.optimizer.adamw is None


def test_everything_filled_is_told_and_nothing_else():
    spec = run_of({"sft": {"batchSize": 4}}, maxSteps=3)

    filled = {item.path: item for item in resolve(spec).filled}

    assert "train.algorithm.sft.batchSize" not in filled
    assert "train.maxSteps" not in filled
    assert filled["train.algorithm.sft.maxLength"].value == 1024
    assert filled["train.optimizer.adamw.learningRate"].value == "2e-05"
    assert filled["train.optimizer.adamw.learningRate"].source == DEFAULTS
    assert filled["learner.strategy.ddp"].value == {}
    assert "actors.nodeSelector" not in filled


@pytest.mark.parametrize("engine", ["embedded", "vllm"])
@pytest.mark.parametrize(
    "algorithm", ["sft", "rm", "dpo", "ipo", "kto", "orpo", "simpo", "ppo", "grpo"]
)
def test_resolving_twice_is_resolving_once(algorithm, engine):
    once = resolve(run_of({algorithm: {}}), engine=engine)

    twice = resolve(once.spec, engine="embedded")

    assert twice.spec == once.spec
    assert twice.filled == ()
    assert canonical_json(twice.spec) == canonical_json(once.spec)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_resolves(name):
    spec = spec_of(
        {"preset": name, "model": {"uri": "hf://a/b"}, "train": {"algorithm": {"sft": {}}}}
    )

    assert resolve(spec).spec.preset == name


def test_a_preset_lies_between_manifest_and_defaults():
    spec = spec_of(
        {
            "preset": "qwen2.5-7b@v1",
            "model": {"uri": "hf://a/b"},
            "train": {"algorithm": {"sft": {}}, "microBatchTokens": 100},
        }
    )

    resolved = resolve(spec)

    assert resolved.spec.train.micro_batch_tokens == 100
    assert resolved.spec.train.activation_checkpointing
    assert resolved.spec.learner.strategy.chosen == "fsdp"
    sources = {item.path: item.source for item in resolved.filled}
    assert sources["model.dtype"] == "qwen2.5-7b@v1"
    assert sources["train.maxGradNorm"] == DEFAULTS


def test_a_preset_never_adds_a_second_union_member():
    spec = spec_of(
        {
            "preset": "qwen2.5-7b@v1",
            "model": {"uri": "hf://a/b"},
            "learner": {"strategy": {"ddp": {}}},
            "evaluate": {},
        }
    )

    resolved = resolve(spec).spec

    assert resolved.learner.strategy.chosen == "ddp"
    assert resolved.train is None


def test_an_unknown_preset_is_refused_with_the_ones_there_are():
    with pytest.raises(ValueError, match=r"'no@v1' does not exist; there are defaults@v1, "):
        resolve(spec_of({"preset": "no@v1", "model": {"uri": "hf://a/b"}, "evaluate": {}}))


@pytest.mark.parametrize(
    ("engine", "settings", "member"),
    [
        ("embedded", {}, "none"),
        ("embedded", {"maxStaleness": 1}, "token_truncated"),
        ("vllm", {}, "token_truncated"),
        ("vllm", {"oldLogprobs": "Actor"}, "none"),
        ("embedded", {"importanceSampling": {"tokenMasked": {}}}, "token_masked"),
    ],
)
def test_the_correction_is_on_whenever_tokens_are_not_the_learners_own(engine, settings, member):
    resolved = resolve(run_of({"grpo": {}}, **settings), engine=engine).spec

    assert resolved.train.importance_sampling.chosen == member


def test_what_depends_on_other_fields_is_filled():
    train = copy.deepcopy(ARITHMETIC) | {"schedule": {"cosine": {}}}
    spec = spec_of(
        {
            "model": {"uri": "rollout://tiny-adder"},
            "train": train,
            "evaluations": [
                {"suite": {"builtin": {"name": "arithmetic"}}, "selects": True},
                {"suite": {"data": {"jsonl": {"uri": "a.jsonl"}}}},
            ],
        }
    )

    resolved = resolve(spec, engine="vllm").spec

    assert resolved.train.sampling.max_new_tokens == 8
    assert resolved.train.schedule.cosine.horizon_steps == 400
    assert resolved.train.rewards[0].name == "exact-match"
    assert resolved.train.epochs is None
    assert resolved.actors.engine.vllm.max_num_seqs == 1
    assert [item.name for item in resolved.evaluations] == ["arithmetic", "evaluation-1"]
    assert [item.split for item in resolved.evaluations] == ["Selection", "Report"]
    assert resolved.evaluations[1].max_new_tokens == 8


def test_a_run_without_a_bound_makes_one_pass():
    assert resolve(run_of({"sft": {}})).spec.train.epochs == 1


def test_canonical_bytes_do_not_depend_on_spelling():
    one = resolve(run_of({"grpo": {"clipLow": "2e-1"}}, rewards=[])).spec
    other = resolve(run_of({"grpo": {"clipLow": 0.2}})).spec

    assert canonical_json(one) == canonical_json(other)


def test_filling_without_an_account_gives_the_same_spec():
    spec = run_of({"grpo": {"groupSize": 4}})

    assert fill(spec, engine="vllm") == resolve(spec, engine="vllm").spec
