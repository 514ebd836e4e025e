"""A device that is too small is refused with the nearest settings that fit it, and says how long a sequence it takes."""

import re
from dataclasses import replace

import pytest

from rollout_api.checks.accelerators.fitting import (
    learner_room,
    loads,
    longest_sequence,
    model_fits,
    nearest_changes,
    recomputing,
    room_of,
)
from rollout_api.checks.accelerators.memory import estimate_learner, offloaded_bytes
from rollout_api.checks.facts import Facts, ModelFacts
from rollout_api.presets import resolve
from rollout_api.v1alpha1.run import RolloutRunSpec

GIB = 2**30
HALF_BILLION = ModelFacts(
    num_parameters=494_032_768,
    hidden_size=896,
    num_layers=24,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=4864,
    vocab_size=151_936,
    context_length=32_768,
)
SEVEN_BILLION = ModelFacts(
    num_parameters=7_615_616_512,
    hidden_size=3584,
    num_layers=28,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    intermediate_size=18_944,
    vocab_size=152_064,
    context_length=32_768,
)


def spec(*, online=False, **more):
    train = {"algorithm": {"sft": {"maxLength": 2048}}, "data": {"jsonl": {"uri": "x.jsonl"}}}
    if online:
        train = {
            "algorithm": {"grpo": {"promptsPerStep": 64, "groupSize": 8}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "sampling": {"maxNewTokens": 1536},
        }
    model = {"uri": "hf://a/b", "dtype": "BFloat16"}
    document = {"model": model, "train": {**train, "maxSteps": 1}, **more}
    return resolve(RolloutRunSpec.model_validate(document)).spec


def changes(model, gib, **more):
    found = nearest_changes(spec(**more), model, 2048, room_of(gib * GIB))
    return None if found is None else [str(change) for change in found]


def test_what_fits_is_left_as_it_is():
    assert changes(HALF_BILLION, 80) == []


def test_smaller_passes_come_first_since_they_change_no_result():
    assert changes(HALF_BILLION, 24) == ["train.microBatchTokens=8192"]


def test_then_activations_are_computed_again_then_states_go_to_the_host_and_then_an_adapter_is_trained():
    assert changes(HALF_BILLION, 12)[0] == "train.activationCheckpointing=true"
    assert changes(HALF_BILLION, 8)[0] == "learner.optimizerOffload=true"
    assert changes(SEVEN_BILLION, 141)[0] == "learner.optimizerOffload=true"
    assert changes(SEVEN_BILLION, 48)[0] == "model.lora.rank=16"
    assert "model.lora.quantization=NF4" in changes(SEVEN_BILLION, 16)


def test_where_nothing_fits_none_is_named():
    assert changes(SEVEN_BILLION, 4) is None


@pytest.mark.parametrize("gib", [8, 12, 16, 24, 48, 96])
@pytest.mark.parametrize("model", [HALF_BILLION, SEVEN_BILLION], ids=["0.5B", "7B"])
def test_what_is_named_fits_and_does_what_it_says(model, gib):
    found = nearest_changes(spec(), model, 2048, room_of(gib * GIB))
    if found is None:
        return
    document = spec().model_dump(mode="json", by_alias=True, exclude_none=True)
    for change in found:
        *path, last = change.field.split(".")
        place = document
        for name in path:
            place = place.setdefault(name, {})
        place[last] = {"true": True}.get(change.value, change.value)
        if change.value.isdigit():
            place[last] = int(change.value)
    changed = resolve(RolloutRunSpec.model_validate(document)).spec
    assert estimate_learner(changed, model, 2048).total <= room_of(gib * GIB)


def test_the_longest_sequence_fits_and_one_more_token_does_not():
    room = room_of(16 * GIB)
    length = longest_sequence(spec(), HALF_BILLION, room)
    assert 0 < length < HALF_BILLION.context_length

    def total(tokens):
        train = spec().train.model_copy(update={"micro_batch_tokens": tokens})
        return estimate_learner(spec().model_copy(update={"train": train}), HALF_BILLION).total

    assert total(length) <= room < total(length + 1)
    assert longest_sequence(recomputing(spec()), HALF_BILLION, room) > length


def test_no_more_than_the_models_context_is_promised():
    assert longest_sequence(spec(), HALF_BILLION, room_of(10_000 * GIB)) == 32_768


OFFLOADING = {"optimizerOffload": True}


def parts_of(asked, model=HALF_BILLION):
    return dict(estimate_learner(asked, model, 2048).parts)


def test_offloaded_states_leave_a_piece_on_the_device_and_the_rest_to_the_host():
    there, away = parts_of(spec()), parts_of(spec(learner=OFFLOADING))
    assert there["optimizer"] == 8 * HALF_BILLION.num_parameters
    assert away["optimizer"] == 2**28
    assert {**there, "optimizer": 0} == {**away, "optimizer": 0}
    assert offloaded_bytes(spec(), HALF_BILLION) == 0
    assert offloaded_bytes(spec(learner=OFFLOADING), HALF_BILLION) == there["optimizer"]
    shards = spec(learner={**OFFLOADING, "processesPerNode": 2, "strategy": {"fsdp": {}}})
    assert offloaded_bytes(shards, HALF_BILLION) == there["optimizer"] // 2
    adapter = spec(learner=OFFLOADING, model={"uri": "hf://a/b", "lora": {"rank": 16}})
    assert parts_of(adapter)["optimizer"] == offloaded_bytes(adapter, HALF_BILLION) < 2**28


def test_a_critics_states_are_offloaded_too():
    algorithm = {"ppo": {"promptsPerStep": 8}}
    sides = []
    for learner in ({}, OFFLOADING):
        asked = spec(online=True, learner=learner)
        train = {**asked.train.model_dump(by_alias=True, exclude_none=True), "algorithm": algorithm}
        train.pop("optimizer")
        document = asked.model_dump(by_alias=True, exclude_none=True)
        sides.append(resolve(RolloutRunSpec.model_validate({**document, "train": train})).spec)
    plain, offloading = map(parts_of, sides)
    states = 8 * HALF_BILLION.num_parameters
    assert plain["critic"] - offloading["critic"] == states
    assert offloaded_bytes(sides[1], HALF_BILLION) == 2 * states


def test_states_are_offloaded_only_to_a_host_that_has_the_memory_for_them():
    def told(host, **more):
        known = replace(facts(8), host_bytes=host * GIB)
        return [f"{one.field}: {one.fix}" for one in model_fits(spec(**more), known)]

    assert "learner.optimizerOffload=true" in told(64)[0]
    assert "learner.optimizerOffload" not in told(2)[0]
    asked = {"learner": OFFLOADING, "model": {"uri": "hf://a/b", "dtype": "BFloat16"}}
    assert any(one.startswith("spec.learner.optimizerOffload") for one in told(2, **asked))


def test_without_devices_the_host_holds_all_states_wherever_they_are_to_lie():
    asked = spec(learner=OFFLOADING)
    known = Facts(platform="local", model=HALF_BILLION, host_bytes=8 * GIB)
    [one], [other] = (list(model_fits(each, known)) for each in (spec(), asked))
    assert one.message == other.message


def facts(*gib):
    sizes = tuple(size * GIB for size in gib)
    return Facts(platform="local", model=HALF_BILLION, device_bytes=sizes)


def test_learner_and_engine_share_one_device_and_have_two_to_themselves():
    shared = loads(spec(online=True), facts(80))
    assert [[item.role for item in load.held] for load in shared] == [["learner", "actor"]]
    apart = loads(spec(online=True), facts(80, 24))
    assert [[item.role for item in load.held] for load in apart] == [["learner"], ["actor"]]
    assert learner_room(spec(online=True), facts(80)) < room_of(80 * GIB)


def test_a_refusal_names_the_device_and_the_nearest_settings():
    (problem,) = model_fits(spec(online=True), facts(24))
    assert problem.reason == "ModelDoesNotFit"
    assert "device 0 of this machine has 24.0 GiB" in problem.message
    assert "--set train.microBatchTokens=" in problem.fix


def test_two_ranks_on_one_device_halve_what_each_may_have():
    two = spec(learner={"processesPerNode": 2})
    assert learner_room(two, facts(80)) == room_of(80 * GIB) // 2


def beside_vllm(share="0.9", **more):
    """A run whose learner and vLLM server have one kind of device."""
    engine = {"vllm": {"gpuMemoryUtilization": share}}
    actors = {"engine": engine, "accelerator": {"className": "h100", "count": 1}, **more}
    return spec(
        online=True, actors=actors, learner={"accelerator": {"className": "h100", "count": 1}}
    )


def problems(asked, *gib):
    return [f"{one.field}: {one.message}; {one.fix}" for one in model_fits(asked, facts(*gib))]


def test_vllm_beside_the_learner_is_given_the_share_that_leaves_the_learner_its_room():
    [told] = problems(beside_vllm(), 80)
    assert "gpuMemoryUtilization" in told
    share = re.search(r"--set actors.engine.vllm.gpuMemoryUtilization=(0\.\d\d)$", told)[1]

    assert problems(beside_vllm(share), 80) == []
    assert problems(beside_vllm(f"{float(share) + 0.01:.2f}"), 80)


def test_vllm_on_a_device_of_its_own_keeps_what_it_takes():
    assert problems(beside_vllm(), 80, 80) == []
    assert "gpuMemoryUtilization=0.46" in problems(beside_vllm(replicas=2), 80, 80)[0]


@pytest.mark.parametrize("gib", [12, 24])
def test_where_the_least_share_is_too_much_the_learner_is_made_smaller_and_vllm_takes_the_rest(gib):
    [told] = problems(beside_vllm(), gib)
    found = dict(one.split("=") for one in told.partition("fits: --set ")[2].split(" --set "))
    share = found.pop("actors.engine.vllm.gpuMemoryUtilization")
    settings = {
        "train.microBatchTokens": ("train", "micro_batch_tokens"),
        "train.activationCheckpointing": ("train", "activation_checkpointing"),
        "learner.optimizerOffload": ("learner", "optimizer_offload"),
    }

    def changed(share):
        asked = beside_vllm(share)
        for field, value in found.items():
            part, name = settings[field]
            update = {name: True if value == "true" else int(value)}
            asked = asked.model_copy(update={part: getattr(asked, part).model_copy(update=update)})
        return asked

    assert problems(changed(share), gib) == []
    assert problems(changed(f"{float(share) + 0.01:.2f}"), gib)


def test_a_share_without_room_for_the_weights_is_refused_with_the_least():
    [told] = problems(beside_vllm("0.01"), 80, 80)
    assert told.startswith("spec.actors.engine.vllm.gpuMemoryUtilization: 0.01 of")
    share = re.search(r"use (0\.\d\d) or more", told)[1]
    assert problems(beside_vllm(share), 80, 80) == []


def test_an_engine_without_a_device_takes_nothing_of_one():
    asked = spec(online=True, actors={"engine": {"vllm": {}}})
    [load] = loads(asked, facts(80))
    assert load.total < 40 * GIB
