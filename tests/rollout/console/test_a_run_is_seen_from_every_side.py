"""Tokens, steps, evaluations, workers, snapshots, logs and comparisons: each page shows what the ledger and the folder hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from console_kit import Page, make_run, open_run, write_config
from ledger_kit import admission, claim_request, finished, trajectory

from rollout.codec import Columns, decode_columns, encode_body
from rollout.console.views.evaluating import choose_places
from rollout.console.views.logs import tail
from rollout.console.views.tokens import ROWS, WINDOW, cut_window
from rollout.errors import SpecError
from rollout.ledger.records import NewEvaluation, NewTask


def long_sample(number: int) -> Columns:
    mask = tuple(int(at % 10 > 4) for at in range(number))
    made = replace(
        trajectory(0, 0), token_ids=(7,) * number, actor_logprobs=(-0.5,) * number, loss_mask=mask
    )
    found = decode_columns(encode_body([made]), made.sample)
    assert found is not None
    return found


def test_a_long_sample_is_cut_into_windows_that_meet():
    made = long_sample(WINDOW)

    first, second = cut_window(made, 0, None), cut_window(made, WINDOW, None)

    assert (first.number, first.num_prompt) == (WINDOW + 3, 3)
    assert [one.at for one in (*first.tokens, *second.tokens)] == list(range(WINDOW + 3))
    assert [one.source for one in first.tokens[:9]] == ["prompt"] * 3 + ["environment"] * 5 + [
        "policy"
    ]
    assert first.turns[:3] == ((0, "prompt"), (3, "environment"), (8, "policy"))
    with pytest.raises(SpecError, match=f"from={WINDOW + 3}: this sample has {WINDOW + 3} tokens"):
        cut_window(made, WINDOW + 3, None)


def test_a_token_says_how_sure_the_policy_was_and_one_that_is_not_trained_on_says_nothing():
    made = long_sample(10)

    tokens = cut_window(made, 0, None).tokens

    assert tokens[-1].probability == pytest.approx(0.6065, abs=1e-4)
    assert (tokens[-1].heat, tokens[-1].version) == (2, None)
    assert (tokens[3].probability, tokens[3].heat) == (None, None)


async def test_a_sample_is_read_token_by_token_also_without_its_tokenizer(console):
    await make_run(console.home, "sum-1", ["5"])

    text = Page(await console.page("/runs/sum-1/tokens?task=t/0&sample=1"))
    table = Page(await console.page("/runs/sum-1/tokens?task=t/0&sample=1&as=table"))

    assert "ids are shown" in text.text
    assert [one["data-n"] for one in text.named("i") if "data-n" in one][-1] == "1 -0.2500 0"
    assert "0.7788" in table.text
    assert ROWS < WINDOW


async def test_a_step_shows_phases_groups_and_which_of_them_taught_nothing(console):
    await make_run(console.home, "sum-1", ["5"] * 3)

    page = Page(await console.page("/runs/sum-1/steps/2"))

    assert "75.0 %" in page.text
    assert "actor-0" in page.text
    assert [one.get("rel") for one in page.named("a") if one.get("rel")] == ["prev", "next"]
    assert "chain-0-2" in page.text
    assert (await console.get("/runs/sum-1/steps/4"))[0] == 404


async def test_steps_are_listed_newest_first(console):
    await make_run(console.home, "sum-1", ["5"] * 60)

    first, second = [
        Page(await console.page(f"/runs/sum-1/steps?page={page}")).named("a") for page in (1, 2)
    ]

    found = [one["href"] for one in (*first, *second) if "/steps/" in one["href"]]
    assert found == [f"/runs/sum-1/steps/{step}" for step in range(60, 0, -1)]


def test_prompts_are_chosen_by_what_became_of_their_reward():
    old, new = {0: 0.0, 1: 1.0, 2: 0.5, 3: 1.0}, {0: 1.0, 1: 0.0, 2: 0.5, 4: 1.0}

    shown = {name: choose_places(old, new, name) for name in ("changed", "won", "lost", "all")}

    assert shown == {"changed": [0, 1], "won": [0], "lost": [1], "all": [0, 1, 2, 3, 4]}


async def test_two_versions_are_compared_answer_by_answer(console):
    ledger = await open_run(console.home, "sum-1", ["5", "6"])
    actor = (await ledger.register("actor-0", "actor")).incarnation
    for step in (0, 2):
        task = NewTask(
            task_id=f"e/{step}", kind="eval", ordinal=0, num_samples=1 + step // 2,
            evaluation="held", split="report", step=step,
        )  # fmt: skip
        new = NewEvaluation(name="held", split="report", lineage=0, step=step, tasks=(task,))
        await ledger.admit(admission(2, 2, evaluations=(new,)))
        [lease] = (await ledger.claim(claim_request("actor-0", actor, step=step))).leases
        await ledger.submit("actor-0", actor, [finished(lease)])
        measured = {"accuracy": {"value": step / 2, "low": 0.0, "high": 1.0}}
        await ledger.finish_evaluation("held", "report", 0, step, measured)
    await ledger.close()

    listed = Page(await console.page("/runs/sum-1/evaluations"))
    versus = Page(await console.page("/runs/sum-1/versus?name=held&split=report&show=won"))

    assert "100.0 %" in listed.text
    assert "1 won, 0 lost, 0 the same" in versus.text
    assert (await console.get("/runs/sum-1/versus?name=held&split=report&before=1"))[0] == 404
    assert (await console.get("/runs/sum-1/versus?name=none&split=report"))[0] == 404


async def test_workers_show_their_leases_and_how_their_attempts_ended(console):
    ledger = await open_run(console.home, "sum-1", ["5"])
    actor = (await ledger.register("actor-0", "actor")).incarnation
    await ledger.admit(admission(1, 3))
    await ledger.claim(claim_request("actor-0", actor))
    await ledger.close()

    page = Page(await console.page("/runs/sum-1/workers"))

    assert "1 accepted" in page.text
    assert "ledger.db" in page.text
    assert "nobody works on this run" in page.text


def test_a_log_is_text_without_a_terminals_orders(tmp_path):
    log = tmp_path / "actor-0.log"
    log.write_bytes(b"INFO \x1b[31mred\x1b[0m\nWARNING careful\n  more of it\nINFO fine\n")

    everything, warnings = tail(log, "all"), tail(log, "WARNING")

    assert [one.text for one in everything][:2] == ["INFO red", "WARNING careful"]
    assert [one.text for one in warnings] == ["WARNING careful", "  more of it"]
    assert log.read_bytes()[warnings[0].offset :].startswith(b"WARNING")


def test_of_a_long_log_only_the_end_is_read(tmp_path):
    log = tmp_path / "actor-0.log"
    log.write_text("".join(f"INFO line {number:07}\n" for number in range(50_000)))

    lines = tail(log, "all")

    assert lines[-1].text == "INFO line 0049999"
    assert all(one.text.startswith("INFO line") for one in lines)
    assert len(lines) < 20_000


async def test_a_process_without_a_log_is_named_with_those_that_have_one(console):
    logs = write_config(console.home, "sum-1") / "logs"
    logs.mkdir()
    (logs / "learner.log").write_text("INFO here\n")

    status, text = await console.get("/runs/sum-1/logs?process=actor-7")

    assert status == 404
    assert "there are: learner" in Page(text).text
    assert "INFO here" in Page(await console.page("/runs/sum-1/logs?process=learner")).text


async def test_ticked_runs_are_laid_over_each_other(console):
    for name in ("a-1", "b-1"):
        await make_run(console.home, name, ["5"] * 4)

    page = Page(await console.page("/compare?run=a-1&run=b-1"))
    by_time = Page(await console.page("/compare?run=a-1&run=b-1&x=time"))

    assert "2 runs compared" in page.text
    assert len(page.named("svg")) == len(by_time.named("svg")) > 2
    status, text = await console.get("/compare?run=a-1&run=a-1")
    assert (status, "tick 2 to 12" in Page(text).text) == (404, True)


async def test_a_run_without_a_snapshot_says_how_to_take_one(console):
    await make_run(console.home, "sum-1", ["5"])

    assert "rollout snapshot create sum-1" in await console.page("/runs/sum-1/snapshots")


async def test_a_samples_way_is_drawn_from_its_prompt_to_what_holds_it(console):
    await make_run(console.home, "sum-1", ["5"])

    [drawing] = Page(await console.page("/runs/sum-1/sample?task=t/0&sample=1")).named("svg")

    assert drawing["aria-label"].startswith(
        "prompt t/0 ordinal 0, then attempt 1 actor-0 version 0"
    )
    assert "then consumed step 1 lineage 0, then version 1 blake3:" in drawing["aria-label"]
