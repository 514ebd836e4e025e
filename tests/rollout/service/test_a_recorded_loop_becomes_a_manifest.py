"""``rollout runs to-manifest``: loops of ours become runs that can be planned, with what they leave out; others are refused."""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest
from reading_kit import rollout, told
from serve_kit import COMMAND
from service_kit import STEP, TINY, sequence_datum, wire_datum

from rollout.errors import SpecError
from rollout.rendering.build import build_renderer
from rollout.runs.manifest import load_documents
from rollout.service.reading.manifests.policy import merge_certain
from rollout.service.reading.manifests.schedule import fit_schedule
from rollout.service.server import note_bases

SUMS = [("3+4=", "7"), ("2+5=", "7"), ("1+1=", "2"), ("6+3=", "9")]


@pytest.fixture
async def begun(service, tmp_path, tiny_base):
    """A service with a model that nothing was asked of yet, and the words of ``to-manifest`` for it."""
    running = await service(tmp_path / "service")
    note_bases(running.book, (TINY,), {"tiny": tiny_base})
    client = running.client()
    await client.begin()
    out = tmp_path / "out"
    words = (
        "runs",
        "to-manifest",
        client.model,
        "--to",
        str(out),
        "--service",
        str(running.folder),
    )
    yield client, out, words


def row_datum(base, prompt, answer, *, ends=True, weight=1.0):
    renderer = build_renderer(base.folder, "plain")
    asked = (*renderer.prefix, *renderer.tokenizer.encode(prompt))
    said = renderer.tokenizer.encode(answer) + renderer.stop_token_ids[: int(ends)]
    ids = asked + said
    weights = [0.0] * (len(asked) - 1) + [weight] * len(said)
    return sequence_datum(ids, weights=weights)


def policy_datum(prompt, completion, advantage):
    ids, before = (*prompt, *completion), [0.0] * (len(prompt) - 1)
    return wire_datum(
        ids[:-1],
        ids[1:],
        {
            "logprobs": before + [-2.0] * len(completion),
            "advantages": before + [advantage] * len(completion),
        },
    )


async def step_on(client, data, loss="cross_entropy", config=None, **params):
    await client.answer(await client.backward(data, loss, **(config or {})))
    await client.answer(await client.step(**params))


async def test_fine_tuning_becomes_a_run_on_the_same_rows_that_can_be_planned(begun, tiny_base):
    client, out, words = begun
    for step in range(4):
        rows = SUMS[:2] if step % 2 == 0 else SUMS[2:]
        data = [row_datum(tiny_base, *row, weight=0.25) for row in rows]
        await step_on(client, data, learning_rate=1e-3 * (4 - step) / 4, weight_decay=0.01)
    found = told(*words)

    (document,) = load_documents(out / "run.yaml")
    train = document.data["spec"]["train"]
    assert (found["algorithm"], found["steps"], train["maxSteps"]) == ("sft", 4, 4)
    assert train["algorithm"]["sft"]["batchSize"] == 2
    assert train["data"] == {"jsonl": {"uri": "rows.jsonl"}, "shuffle": False}
    assert train["schedule"] == {"linear": {"horizonSteps": 4, "minimumRatio": "0.25"}}
    assert train["optimizer"]["adamw"] == {
        "learningRate": "0.001",
        "beta1": "0.9",
        "beta2": "0.95",
        "epsilon": "1e-08",
        "weightDecay": "0.01",
    }
    rows = [json.loads(line) for line in (out / "rows.jsonl").open()]
    assert [(row["prompt"], row["answer"]) for row in rows] == SUMS
    assert [text for text in found["left_out"] if "seed 1" not in text] == []
    assert "Left out" in (out / "run.yaml").read_text()
    rollout("plan", "-f", str(out / "run.yaml"))


@pytest.mark.slow
@pytest.mark.process
async def test_the_run_of_the_manifest_takes_the_losses_of_the_loop(
    begun, tiny_base, tmp_path, monkeypatch
):
    """The adapter begins at zero whatever its seed: the first loss is the same number."""
    client, out, words = begun
    data = [row_datum(tiny_base, *row, weight=1 / 8) for row in SUMS]
    for _ in range(3):
        await step_on(client, data, learning_rate=1e-2)
    rollout(*words)
    recorded = [one["loss"] for one in told("runs", "show", client.model, *words[-2:])["losses"]]

    home = tmp_path / "home"
    monkeypatch.setenv("ROLLOUT_HOME", str(home))
    done = await asyncio.to_thread(
        subprocess.run,
        [*COMMAND, "run", "-f", str(out / "run.yaml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rollout(
        "runs",
        "export",
        "from-service",
        "--to",
        str(home / "x"),
        "--format",
        "jsonl",
        "--what",
        "metrics",
    )
    taken = [json.loads(line)["loss"] for line in (home / "x" / "metrics.jsonl").open()]
    assert taken[0] == pytest.approx(recorded[0], rel=1e-5)
    assert taken[-1] == pytest.approx(recorded[-1], rel=0.05)


async def test_what_a_manifest_does_not_say_is_told_line_by_line(begun, tiny_base):
    client, _, words = begun
    data = [row_datum(tiny_base, *row, ends=False) for row in SUMS]
    for rate in (1e-3, 5e-3, 2e-3):
        await step_on(client, data, learning_rate=rate, grad_clip_norm=rate)
    await client.answer(await client.backward(data, forward_only=True))
    await client.answer(await client.backward(data))
    told_out = "\n".join(told(*words)["left_out"])
    for part in (
        "3 steps took a sum",
        "4 rows end without an end token",
        "follow no schedule",
        "numbers change from step to step",
        "1 calls computed losses alone",
        "last 1 calls were never applied",
    ):
        assert part in told_out


async def test_what_a_plan_refuses_stands_first(begun, tiny_base):
    client, out, words = begun
    await client.begin(rank=32, number=1)
    await step_on(client, [row_datum(tiny_base, *row) for row in SUMS])
    found = told(*words[:2], client.model, *words[3:])
    assert found["left_out"][0].startswith("as it is, the plan is refused: run.yaml:")
    assert "rank 32" in (out / "run.yaml").read_text().splitlines()[1]


async def test_groups_become_grpo_whose_reward_must_be_supplied(begun, tiny_base):
    client, out, words = begun
    saved = await client.answer(await client.save())
    for seq, prompt in enumerate([(5, 6, 7), (5, 6, 8), (5, 5)]):
        await client.answer(
            await client.sample(
                saved["sampling_session_id"],
                seq,
                num_samples=4,
                params={"temperature": 0.5},
                prompt={"chunks": [{"type": "encoded_text", "tokens": prompt}]},
            )
        )
    clip = {"clip_low_threshold": 0.7, "clip_high_threshold": 1.3}
    for step in range(2):
        data = [
            policy_datum((5, 6 + step, 7 + prompt), (9, 10 + sample), advantage)
            for prompt in range(2)
            for sample, advantage in enumerate((0.25, 0.25, 0.25, -0.75))
        ]
        await step_on(client, data, "ppo", clip)
    found = told(*words)

    (document,) = load_documents(out / "run.yaml")
    train = document.data["spec"]["train"]
    assert train["algorithm"]["grpo"] == {
        "promptsPerStep": 3,
        "groupSize": 4,
        "aggregation": "SequenceSum",
        "advantageScale": "None",
        "surrogate": {"clipped": {}},
        "clipLow": "0.3",
        "clipHigh": "0.3",
    }
    assert train["sampling"]["temperature"] == "0.5"
    assert (train["oldLogprobs"], train["schedule"]) == ("Actor", {"constant": {}})
    assert len((out / "rows.jsonl").read_text().splitlines()) == 5
    assert any(text.startswith("1 prompts were sampled and never") for text in found["left_out"])
    assert any("supply them in reward.py" in text for text in found["left_out"])
    rollout("plan", "-f", str(out / "run.yaml"))


async def test_ratios_of_sequences_become_those_of_a_run(begun):
    client, out, words = begun
    data = [policy_datum((5, 6), (9, 10 + i), a) for i, a in enumerate((0.5, -0.5))]
    await step_on(client, data, "gspo")
    told(*words)
    (document,) = load_documents(out / "run.yaml")
    grpo = document.data["spec"]["train"]["algorithm"]["grpo"]
    assert (grpo["ratio"], grpo["clipLow"], grpo["clipHigh"]) == ("Sequence", "0.0003", "0.0004")
    rollout("plan", "-f", str(out / "run.yaml"))


@pytest.mark.parametrize(
    ("loss", "advantages", "why"),
    [
        ("ppo", (0.25, 0.25), "centred on 0"),
        ("cispo", (0.0, 0.0), "nothing shows"),
    ],
)
async def test_advantages_of_no_group_are_refused(begun, loss, advantages, why):
    client, out, words = begun
    await step_on(client, [policy_datum((5, 6), (9, i), a) for i, a in enumerate(advantages)], loss)
    with pytest.raises(SpecError, match=why):
        rollout(*words)
    assert not out.exists()


async def test_a_loop_that_is_none_of_ours_is_refused_with_its_reasons(begun, tmp_path):
    client, _, words = begun
    with pytest.raises(SpecError, match="no step of the optimizer"):
        rollout(*words)
    await step_on(client, [sequence_datum(weights=[0.0, 0.0, 0.0, 0.5, 0.25, 0.5])])
    with pytest.raises(SpecError, match="weights differ within one answer"):
        rollout(*words)
    await step_on(
        client, [policy_datum((5, 6), (9, i), a) for i, a in enumerate((1.0, -1.0))], "ppo"
    )
    with pytest.raises(SpecError, match=r"1 calls of cross_entropy, 1 calls of ppo"):
        rollout(*words)
    with pytest.raises(SpecError, match="expected a new or an empty folder"):
        rollout(*words[:4], str(tmp_path), *words[5:])


@pytest.mark.parametrize(
    ("rates", "schedule"),
    [
        ([0.1] * 5, {"constant": {}}),
        ([0.05, 0.1, 0.1, 0.1], {"constant": {"warmupSteps": 2}}),
        ([1.0, 0.75, 0.5, 0.25], {"linear": {"horizonSteps": 4, "minimumRatio": "0.25"}}),
        (
            [1.0, 0.8535533905932737, 0.5, 0.1464466094067262, 0.0],
            {"cosine": {"horizonSteps": 5, "minimumRatio": "0"}},
        ),
        ([0.1, 0.3, 0.2], None),
        ([0.0, 0.0], {"constant": {}}),
    ],
)
def test_learning_rates_are_the_schedule_that_gives_them_or_none(rates, schedule):
    found = fit_schedule(rates)
    assert (None if found is None else found[1]) == schedule


def test_the_kit_steps_with_the_numbers_that_are_asserted():
    assert (STEP["beta2"], STEP["eps"]) == (0.95, 1e-8)


def test_a_certain_first_token_without_an_advantage_parts_no_group():
    groups = {(5, 6): [0.0, 0.0], (5, 6, 9): [0.0], (5, 6, 8): [1.0, -1.0], (7,): [0.0]}
    assert merge_certain(groups) == {(7,): [0.0], (5, 6): [0.0] * 3, (5, 6, 8): [1.0, -1.0]}
