from pathlib import Path

import pytest

from rollout.errors import SpecError
from rollout.runs.identity import spec_digest
from rollout.runs.manifest import Document
from rollout.runs.plan.machine import device_bytes
from rollout.runs.prepare import prepare_run
from rollout.runs.resolve import Resolution
from rollout.runs.run_dir import RunDir
from rollout.runs.validation import apply_values
from rollout.supervisor.launch import Launch, build_config
from rollout.supervisor.processes import (
    Machine,
    plan_machine,
    plan_processes,
    plan_threads,
)

GRPO = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "arithmetic"},
    "spec": {
        "model": {"uri": "rollout://tiny-qwen2"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 4, "groupSize": 2}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "maxSteps": 5,
        },
    },
}
SFT = {
    **GRPO,
    "spec": {
        "model": {"uri": "rollout://tiny-qwen2"},
        "train": {"algorithm": {"sft": {}}, "data": {"jsonl": {"uri": "train.jsonl"}}},
    },
}
RUN = RunDir(path=Path("/runs/arithmetic-1"))
FOUR = Machine(cpus=4)


def spec(document=GRPO, **changes):
    return prepare_run(
        apply_values(
            Document(source="arithmetic.yaml", data=document, lines={}),
            {name.replace("_", "."): value for name, value in changes.items()},
        )
    ).spec


def names(processes) -> list[str]:
    return [process.name for process in processes]


def digest(of, **changes) -> str:
    facts = {"model_digest": "blake3:aa", "data_digests": {"train": "x"}, "dtype": "Float32"}
    return spec_digest(of, **{**facts, **changes})


def test_a_run_is_a_learner_its_actors_and_a_coordinator():
    assert names(plan_processes(spec(actors_replicas=2), RUN, FOUR)) == [
        "learner",
        "actor-0",
        "actor-1",
        "coordinator",
    ]


def test_supervised_training_needs_no_actor_until_something_is_measured():
    assert not spec(SFT).needs_actors
    evaluations = [{"suite": {"builtin": {"name": "arithmetic"}}}]
    assert spec(SFT, evaluations=evaluations).needs_actors


def test_each_process_reads_the_same_file():
    for process in plan_processes(spec(), RUN, FOUR):
        assert process.arguments[:2] == ("--config", "/runs/arithmetic-1/attempt.json")
        assert process.module == f"rollout.entrypoints.{process.role}"


def test_two_ranks_run_under_torchrun_and_each_is_tied_to_it():
    learner = plan_processes(spec(learner_processesPerNode=2), RUN, FOUR)[0]

    assert learner.module == "rollout.entrypoints.ranks"
    assert "--nproc-per-node 2 --max-restarts 0" in " ".join(learner.arguments)
    assert learner.arguments[-4:-2] == (
        "rollout.common.parent_death",
        "rollout.entrypoints.learner",
    )


def test_a_learner_of_several_nodes_has_all_its_ranks_here():
    """It would otherwise claim to be the run of so many ranks, and be another one."""
    two_by_two = spec(learner_nodes=2, learner_processesPerNode=2)
    learner = plan_processes(two_by_two, RUN, FOUR)[0]

    assert "--nproc-per-node 4" in " ".join(learner.arguments)
    assert plan_threads(two_by_two, FOUR) == 1
    assert digest(two_by_two) == digest(spec(learner_processesPerNode=4))


def test_the_manifests_environment_and_retries_reach_the_workers():
    processes = plan_processes(
        spec(env=[{"name": "MODE", "value": "fun"}], limits_retries=3), RUN, FOUR
    )

    assert {process.env.get("MODE") for process in processes[:2]} == {"fun"}
    assert "MODE" not in processes[-1].env
    assert {process.restart.retries_max for process in processes} == {3}


def test_synchronous_processes_take_turns_on_all_cores():
    assert plan_threads(spec(), FOUR) == 4
    assert plan_threads(spec(learner_processesPerNode=2), FOUR) == 2


def test_asynchronous_processes_share_the_cores():
    assert plan_threads(spec(train_maxStaleness=1), FOUR) == 2
    fast = spec(train_maxStaleness=1, numerics_mode="Fast", actors_replicas=3)
    assert plan_threads(fast, FOUR) == 1


def test_in_exact_the_number_of_actors_does_not_change_the_threads():
    assert plan_threads(spec(actors_replicas=4), FOUR) == plan_threads(spec(), FOUR)


def test_a_tiny_model_gets_one_thread():
    assert plan_threads(spec(), FOUR, num_parameters=400_000) == 1


@pytest.mark.parametrize(
    ("environment", "affinity", "cpus"),
    [({}, 8, 8), ({"OMP_NUM_THREADS": "2"}, 8, 2), ({"OMP_NUM_THREADS": "many"}, 8, 8)],
)
def test_the_users_bound_on_threads_is_respected(environment, affinity, cpus):
    assert plan_machine(environment, affinity).cpus == cpus


@pytest.mark.parametrize(
    "change",
    [
        {"train_maxSteps": 50},
        {"actors_replicas": 3},
        {"limits_retries": 1},
        {"snapshots_everySteps": 2},
        {"suspend": True},
        {"evaluations": [{"suite": {"builtin": {"name": "arithmetic"}}}]},
    ],
)
def test_what_may_change_in_a_run_does_not_change_what_it_is(change):
    assert digest(spec(**change)) == digest(spec())


def test_a_model_may_move_when_its_content_is_the_same():
    here, there = spec(model_uri="file:///here"), spec(model_uri="file:///there")

    assert digest(here) == digest(there)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"numerics_mode": "Fast"},
        {"train_algorithm_grpo_groupSize": 4},
        {"train_sampling_temperature": 0.7},
        {"learner_processesPerNode": 2},
        {"actors_engine": {"vllm": {}}},
    ],
)
def test_what_decides_tokens_or_parameters_makes_another_run(change):
    assert digest(spec(**change)) != digest(spec())


def test_other_weights_or_data_make_another_run():
    same = spec()

    assert digest(same, model_digest="blake3:bb") != digest(same)
    assert digest(same, data_digests={"train": "y"}) != digest(same)
    assert digest(same, data_digests={"train": "x", "sums": "z"}) == digest(same)


def test_relative_paths_start_at_the_manifests_folder(tmp_path):
    manifest = tmp_path / "sft.yaml"
    manifest.write_text("")
    (tmp_path / "saved").mkdir()
    document = Document(source=str(manifest), data=SFT, lines={})
    hub = {"huggingFace": {"path": "owner/name"}}
    local = {"huggingFace": {"path": "saved"}}

    placed = prepare_run(document).spec
    named = prepare_run(apply_values(document, {"train.data": hub})).spec
    saved = prepare_run(apply_values(document, {"train.data": local})).spec

    assert placed.train.data.jsonl.uri == str(tmp_path / "train.jsonl")
    assert named.train.data.hugging_face.path == "owner/name"
    assert saved.train.data.hugging_face.path == str(tmp_path / "saved")


def test_a_reward_beside_the_manifest_is_found(tmp_path):
    manifest = tmp_path / "grpo.yaml"
    manifest.write_text("")
    rewards = [{"python": {"path": "mine.py", "function": "brevity"}}]
    document = apply_values(
        Document(source=str(manifest), data=GRPO, lines={}), {"train.rewards": rewards}
    )

    assert prepare_run(document).spec.train.rewards[0].python.path == str(tmp_path / "mine.py")


def test_functions_given_in_memory_take_the_place_of_the_manifests():
    document = Document(source="arithmetic.yaml", data=GRPO, lines={})
    rewards = [{"python": {"path": "/run/code/brevity.pkl", "function": "brevity"}}]

    assert prepare_run(document, rewards).spec.train.rewards[0].name == "brevity"


def test_a_manifest_that_does_not_parse_names_the_field():
    document = Document(
        source="arithmetic.yaml", data={**GRPO, "spec": {"model": {"uri": 3}}}, lines={}
    )

    with pytest.raises(SpecError, match=r"spec\.model\.uri"):
        prepare_run(document)


def test_what_changed_since_a_run_began_is_named():
    found = Resolution(
        model_path="/m",
        model_digest="blake3:" + "b" * 64,
        model_revision=None,
        num_parameters=1,
        context_length=64,
        stop_token_ids=(1,),
        prompt_tokens_max=8,
        data_digests={"train": "x"},
    )
    document = Document(source="arithmetic.yaml", data=GRPO, lines={})
    began = Launch(prepared=prepare_run(document), run=RUN)
    before = build_config(began, found, FOUR, "http://127.0.0.1:1")
    longer = prepare_run(apply_values(document, {"train.maxSteps": 9, "actors.replicas": 2}))
    other = prepare_run(apply_values(document, {"seed": 3}))

    after = build_config(
        Launch(prepared=longer, run=RUN, previous=before), found, FOUR, "http://127.0.0.1:2"
    )
    with pytest.raises(SpecError, match=r"changed since it began: spec\.seed"):
        build_config(
            Launch(prepared=other, run=RUN, previous=before), found, FOUR, "http://127.0.0.1:2"
        )

    assert after.run.uid == before.run.uid
    assert after.spec_digest == before.spec_digest
    assert after.spec.train.max_steps == 9


def visible(processes) -> list[str | None]:
    return [process.env.get("CUDA_VISIBLE_DEVICES") for process in processes]


def test_the_learner_has_the_first_devices_and_actors_share_out_the_rest():
    machine = Machine(cpus=8, devices=("0", "1", "2", "3"))
    two_ranks = spec(learner_processesPerNode=2, actors_replicas=3)
    assert visible(plan_processes(two_ranks, RUN, machine)) == [None, "2", "3", "2", None]


def test_an_engine_of_two_devices_has_two_of_its_own_or_the_last_beside_the_learner():
    wide = spec(
        actors={
            "engine": {"vllm": {"tensorParallel": 2}},
            "replicas": 2,
            "accelerator": {"className": "h100", "count": 2},
        }
    )
    five = Machine(cpus=8, devices=("0", "1", "2", "3", "4"))
    assert visible(plan_processes(wide, RUN, five)[1:3]) == ["1,2", "3,4"]
    two = Machine(cpus=8, devices=("6", "7"))
    assert visible(plan_processes(wide, RUN, two)[1:3]) == ["6,7", "6,7"]


def test_one_device_is_shared_without_a_word():
    assert visible(plan_processes(spec(), RUN, Machine(cpus=8, devices=("0",)))) == [None] * 3


def test_devices_that_the_user_hides_are_not_planned_with():
    assert plan_machine({"CUDA_VISIBLE_DEVICES": "2, 3"}, 8, accelerators=4).devices == ("2", "3")
    assert plan_machine({"CUDA_VISIBLE_DEVICES": ""}, 8, accelerators=4).accelerators == 0
    assert plan_machine({}, 8, accelerators=2).devices == ("0", "1")


@pytest.mark.parametrize(
    ("said", "gib"),
    [(None, [80, 24, 16]), ("", []), ("2, 0", [16, 80]), ("GPU-a", [80]), ("7", [])],
)
def test_memory_is_that_of_the_devices_that_a_process_sees(tmp_path, monkeypatch, said, gib):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '81920\\n24576\\n16384\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if said is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert [size >> 30 for size in device_bytes()] == gib
