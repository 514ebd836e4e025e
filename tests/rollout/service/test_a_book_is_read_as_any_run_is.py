"""``rollout runs`` reads a service's book: while the service runs, after it, and never more than it says."""

from __future__ import annotations

import json

import pytest
from reading_kit import STEPS, change, rollout, told
from service_kit import sequence_datum
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import LedgerError, SpecError


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
    change(
        book,
        "UPDATE calls SET answer = NULL, chain = NULL WHERE seq = 8 AND line = ?",
        client.model,
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
    change(book, "UPDATE calls SET call = x'00' WHERE seq = 2 AND line = ?", client.model)
    with pytest.raises(LedgerError, match=r"call 2 of .* is damaged"):
        rollout("runs", "show", client.model, *service)
    change(book, "PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="format 99"):
        rollout("runs", "show", client.model, *service)
    book.write_bytes(b"no book at all, of no database" * 400)
    with pytest.raises(LedgerError):
        rollout("runs", "show", client.model, *service)


async def test_samples_and_steps_are_exported_in_the_forms_of_a_run(served, tmp_path):
    import pyarrow.parquet as pq

    _, client, service = served
    for form in ("jsonl", "parquet"):
        rollout(
            "runs",
            "export",
            client.model,
            "--to",
            str(tmp_path / "out"),
            "--format",
            form,
            "--what",
            "samples",
            "--what",
            "metrics",
            *service,
        )
    lines = {
        name: [json.loads(line) for line in (tmp_path / "out" / f"{name}.jsonl").open()]
        for name in ("samples", "metrics")
    }
    for name, rows in lines.items():
        assert pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() == rows
    assert [row["step"] for row in lines["metrics"]] == [1, 2, 3]
    assert lines["metrics"][0]["learning_rate"] == 1e-2
    assert lines["metrics"][-1]["gradient_norm:max"] > 0
    samples = told("runs", "samples", client.model, *service)
    assert [row["token_ids"] for row in lines["samples"]] == [row["token_ids"] for row in samples]
    with pytest.raises(SpecError, match="--what evaluations"):
        rollout(
            "runs", "export", client.model, "--to", str(tmp_path), "--what", "evaluations", *service
        )


async def test_texts_that_would_move_a_terminal_are_shown_as_text(served):
    _, client, service = served
    await client.answer(await client.backward([sequence_datum()], "\x1b[2Jgone"))
    for command in ("show", "trace"):
        assert "\x1b" not in rollout("runs", command, client.model, *service)


async def test_what_does_not_read_a_book_says_so_and_a_bad_book_hides_no_run(
    served, tmp_path, monkeypatch
):
    running, client, _ = served
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path))
    with pytest.raises(SpecError, match="which this command does not read"):
        rollout("runs", "report", client.model)
    with pytest.raises(SpecError, match="TRAJECTORY 'abc'"):
        rollout("runs", "trace", client.model, "abc")
    with pytest.raises(SpecError, match="--sort reward"):
        rollout("runs", "samples", client.model, "--sort", "reward")
    await running.stop()
    change(running.folder / "calls.sqlite", "PRAGMA user_version = 99")
    assert told("runs", "list") == []
    with pytest.raises(SpecError, match="no run 'nobody'"):
        rollout("runs", "show", "nobody")
    with pytest.raises(LedgerError, match="format 99"):
        rollout("runs", "show", client.model)
