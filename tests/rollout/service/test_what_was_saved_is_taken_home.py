"""What was saved becomes a folder: by the command, and as an archive of the service; transformers and PEFT load it."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from reading_kit import code_of, rollout, small_loop, told
from service_kit import TINY, sequence_datum
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollout.errors import ModelNotFound, SpecError, StoreError
from rollout.runs.export.lineage import read_lineage
from rollout.service.server import note_bases
from rollout.weights.digest import digest_tensors

PROMPT = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture
async def saved(service, tmp_path, tiny_base):
    """A service, its client, the paths of a state and of weights after three steps, and the words that name the book."""
    running = await service(tmp_path / "service")
    note_bases(running.book, (TINY,), {"tiny": tiny_base})
    client = running.client()
    await small_loop(client)
    state = (await client.answer(await client.save_state("final")))["path"]
    weights = (await client.answer(await client.save("final")))["path"]
    return running, client, (state, weights), ("--service", str(tmp_path / "service"))


def logits(model):
    with torch.no_grad():
        return model(PROMPT).logits


def archive(client, path):
    model, _, name = path.removeprefix("tinker://").partition("/")
    return client.http.get(
        f"/api/v1/training_runs/{model}/checkpoints/{name}/archive",
        headers={"X-API-Key": client.key},
    )


async def taken(client, path, folder: Path) -> Path:
    async with archive(client, path) as reply:
        assert (reply.status, reply.content_type) == (200, "application/x-tar")
        body = await reply.read()
        assert len(body) == reply.content_length
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "model"


async def test_transformers_and_peft_load_what_the_command_writes(saved, tmp_path, tiny_base):
    running, client, (_, weights), service = saved
    whole, adapter = tmp_path / "whole", tmp_path / "adapter"
    words = ("model", "export", client.model, *service, "--saved", "final", "--to")
    first = told(*words, str(whole), "--merge")
    assert (first["form"], first["step"], first["was_there"]) == ("merged", 3, False)
    assert first["chain"] == client.chains[-1]
    assert told(*words, str(whole), "--merge")["was_there"]
    assert told(*words, str(adapter))["form"] == "adapter"
    for folder in (whole, adapter):
        assert told("model", "show", str(folder))["damage"] == []
        assert "rollout" in (folder / "README.md").read_text()
    merged = AutoModelForCausalLM.from_pretrained(whole)
    assert AutoTokenizer.from_pretrained(whole)("1+2")["input_ids"]
    digest = running.desk.registry.saved(weights).digest
    assert digest_tensors(dict(merged.named_parameters())) == digest
    assert read_lineage(whole).version == read_lineage(whole).weights == digest
    base = AutoModelForCausalLM.from_pretrained(tiny_base.folder)
    untrained = logits(base)
    served = logits(PeftModel.from_pretrained(base, adapter))
    torch.testing.assert_close(served, logits(merged), rtol=0, atol=1e-5)
    assert not torch.equal(untrained, served)
    assert json.loads((adapter / "adapter_config.json").read_text())["lora_alpha"] == 32


async def test_the_archive_is_the_folder_of_the_command(saved, tmp_path):
    _running, client, (state, weights), service = saved
    for path, more in ((state, ()), (weights, ("--merge",))):
        kind = path.split("/")[3]
        here = tmp_path / "here" / kind
        rollout("model", "export", client.model, *service, *more, "--to", str(here))
        there = await taken(client, path, tmp_path / "there" / kind)
        assert {one.name: one.read_bytes() for one in there.iterdir()} == {
            one.name: one.read_bytes() for one in here.iterdir()
        }
    assert list((tmp_path / "service" / "downloads").iterdir()) == []


async def test_who_may_read_may_take_home_and_nobody_else(saved, tmp_path):
    running, client, (state, weights), _ = saved
    other = running.client("two")
    for path in (state, weights, state.replace("final", "..%2f..%2fcalls.sqlite")):
        async with archive(other, path) as reply:
            assert reply.status == 404
    await client.change(weights, "POST", "/publish")
    await taken(other, weights, tmp_path / "theirs")
    async with archive(running.client("three", models=("large",)), weights) as reply:
        assert (reply.status, "not served to this key" in await reply.text()) == (422, True)
    await client.change(weights, "DELETE")
    for one in (client, other):
        async with archive(one, weights) as reply:
            assert reply.status == 404
    async with archive(client, state) as reply:
        assert reply.status == 200


async def test_what_cannot_be_taken_home_is_said(saved, tmp_path):
    running, client, (state, weights), service = saved
    out = tmp_path / "out"
    words = ("model", "export", client.model, *service, "--to", str(out))
    for more, error, said in (
        (("--saved", "first"), SpecError, "no state named 'first' .there: final"),
        (("--step", "1"), SpecError, "--step, --best, --endpoint and --region are of runs"),
        (("--base", "rollout://tiny-adder"), ModelNotFound, "name the base as it was"),
        (("--to", "s3://bucket/x"), SpecError, "goes to folders only"),
    ):
        with pytest.raises(error, match=said):
            code_of(*words, *more)
    await client.change(state, "DELETE")
    with pytest.raises(SpecError, match="was deleted"):
        code_of(*words)
    file = running.desk._keeper.weights.path(running.desk.registry.saved(weights).digest)
    content = file.read_bytes()
    file.write_bytes(content[:-4] + bytes(4))
    with pytest.raises(StoreError, match="expected tensors of digest"):
        code_of(*words, "--merge")
    assert not out.exists()


async def test_archives_that_are_sent_have_a_bound(saved, monkeypatch):
    _running, client, (_, weights), _ = saved
    monkeypatch.setattr("rollout.service.saved.archive.COPIES_OF_KEY_MAX", 0)
    async with archive(client, weights) as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (429, "1")


async def test_a_model_whose_weights_are_all_trained_is_taken_home_as_it_is(
    service, tmp_path, tiny_base
):
    running = await service(tmp_path / "service", full_weights={"tiny"})
    note_bases(running.book, (TINY,), {"tiny": tiny_base})
    client = running.client()
    await client.begin()
    await client.answer(await client.backward([sequence_datum()]))
    await client.answer(await client.step())
    state = (await client.answer(await client.save_state("a")))["path"]
    await client.answer(await client.save("a"))
    folder = tmp_path / "out"
    words = ("model", "export", client.model, "--service", str(tmp_path / "service"))
    assert told(*words, "--to", str(folder))["form"] == "full"
    AutoModelForCausalLM.from_pretrained(folder)
    async with archive(client, state) as reply:
        assert reply.status == 422
        assert "save_weights_for_sampler" in (await reply.json())["detail"]
