"""``rollout runs`` reads a service's book: while the service runs, after it, and never more than it says."""

from __future__ import annotations

import json
import sqlite3

import pytest
from service_kit import TINY, sequence_datum
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import LedgerError, SpecError
from rollout.service.server import note_bases

SAMPLED = {"logprobs": [-5.0] * 6, "advantages": [0.5, -0.5] * 3}
STEPS = 3


def rollout(*words: str) -> str:
    """What a command prints; what it raises is raised."""
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def told(*words: str):
    return json.loads(rollout(*words, "--output", "json"))


async def small_loop(client) -> None:
    """Three steps, a refused call, saved weights and a sampler without a name, sampled from."""
    await client.begin()
    for _ in range(STEPS):
        await client.answer(await client.backward([sequence_datum(), sequence_datum()]))
        await client.answer(await client.step())
    await client.answer(await client.backward([sequence_datum(weights=[1.0])]))
    saved = await client.answer(await client.save())
    await client.answer(await client.sample(saved["sampling_session_id"], num_samples=2))


@pytest.fixture
async def served(service, tmp_path, tiny_base):
    running = await service(tmp_path / "service")
    note_bases(running.book, (TINY,), {"tiny": tiny_base})
    client = running.client()
    await small_loop(client)
    yield running, client, ("--service", str(tmp_path / "service"))


async def test_a_model_is_listed_and_shown_while_its_service_runs(served):
    _, client, service = served
    (row,) = told("runs", "list", *service)
    assert (row["run"], row["step"], row["model"]) == (client.model, STEPS, "tiny")

    shown = told("runs", "show", client.model[:12], *service)
    assert shown["chain"] == (await client.state())["chain"]
    assert shown["calls"] == {"forward_backward": 4, "optim_step": 3, "save_weights_for_sampler": 1}
    assert (shown["steps"], shown["refused"], shown["waiting"], shown["broken"]) == (3, 1, 0, None)
    assert [one["tokens"] for one in shown["losses"]] == [12, 12, 12]
    assert shown["losses"][-1]["loss"] < shown["losses"][0]["loss"]
    assert shown["samples"]["completions"] == 2
    assert shown["adapter"]["rank"] == 4
    assert client.key not in rollout("runs", "show", client.model, *service)


async def test_each_call_is_traced_with_the_chain_that_its_client_was_given(served):
    _, client, service = served
    rows = told("runs", "trace", client.model, *service)
    assert [row["chain"] for row in rows] == client.chains
    assert [row["call"] for row in rows] == list(range(1, 9))
    assert "cross_entropy of 2 sequences, 12 tokens" in rows[0]["asked"]
    assert rows[6]["answered"].startswith("refused: data[0]")
    (one,) = told("runs", "trace", client.model, "--call", "7", *service)
    assert one == rows[6]
    assert (
        "at most 2 calls"
        in CliRunner().invoke(app, ["runs", "trace", client.model, "--limit", "2", *service]).stderr
    )


async def test_samples_have_texts_ids_and_logprobs_and_the_step_that_they_are_of(served):
    _, client, service = served
    rows = told("runs", "samples", client.model, *service)
    assert [(row["step"], row["prompt_ids"], row["sample"]) for row in rows] == [
        (3, [5, 6], 0),
        (3, [5, 6], 1),
    ]
    assert all(len(row["token_ids"]) == len(row["actor_logprobs"]) for row in rows)
    assert all(isinstance(row["completion"], str) for row in rows)
    assert told("runs", "samples", client.model, "--step", "1", *service) == []


async def test_a_service_that_died_in_a_call_is_read_and_the_call_is_told_as_waiting(served):
    running, client, service = served
    await running.stop()
    book = running.folder / "calls.sqlite"
    with sqlite3.connect(book) as connection:
        connection.execute(
            "UPDATE calls SET answer = NULL, chain = NULL WHERE seq = 8 AND line = ?",
            (client.model,),
        )
    shown = told("runs", "show", client.model, *service)
    assert (shown["answered"], shown["waiting"]) == (7, 1)
    assert "the first is call 8" in shown["state"]
    assert (
        told("runs", "trace", client.model, "--call", "8", *service)[0]["answered"]
        == "not answered yet"
    )


async def test_an_unknown_model_is_refused_as_an_unknown_run_is(served, tmp_path, monkeypatch):
    _, client, service = served
    with pytest.raises(SpecError, match="no model 'nobody'"):
        rollout("runs", "show", "nobody", *service)
    with pytest.raises(SpecError, match="no service has kept a book"):
        rollout("runs", "show", client.model, "--service", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path))
    assert told("runs", "show", client.model)["model"] == client.model
    with pytest.raises(SpecError, match="no run 'nobody'"):
        rollout("runs", "show", "nobody")
    with pytest.raises(SpecError, match=r"no run 'nobody'"):
        rollout("runs", "trace", "nobody", "--call", "1")


async def test_a_book_of_another_format_and_a_damaged_one_are_refused_by_name(served):
    running, client, service = served
    await running.stop()
    book = running.folder / "calls.sqlite"
    with sqlite3.connect(book) as connection:
        connection.execute(
            "UPDATE calls SET call = x'00' WHERE seq = 2 AND line = ?", (client.model,)
        )
    with pytest.raises(LedgerError, match=r"call 2 of .* is damaged"):
        rollout("runs", "show", client.model, *service)
    with sqlite3.connect(book) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="format 99"):
        rollout("runs", "show", client.model, *service)
    book.write_bytes(b"no book at all, of no database" * 400)
    with pytest.raises(LedgerError):
        rollout("runs", "show", client.model, *service)
