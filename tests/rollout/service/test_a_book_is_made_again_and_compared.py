"""``rollout verify-resume`` makes the calls of a model again and names the first that comes to something else."""

from __future__ import annotations

import json

import msgspec
import pytest
from reading_kit import change, code_of, told
from service_kit import sequence_datum

from rollout.errors import SpecError
from rollout.learner.model.numerics import runtime_identity
from rollout.learner.model.parallel import CPU
from rollout.service.calls import OptimStep, digest_fact, encode_fact


@pytest.fixture
async def kept(served):
    """A service that has ended, with anchors, in whose book stands this machine; its model and the words that name it."""
    running, client, service = served
    await running.stop(anchors=True)
    here = runtime_identity(world_size=1, device=CPU)
    book = running.folder / "calls.sqlite"
    change(book, "UPDATE book SET identity = ?", msgspec.json.encode(here).decode())
    return book, client, service


async def test_a_book_that_nobody_changed_comes_to_the_same_chain_from_the_start_and_from_its_anchor(
    kept,
):
    book, client, service = kept
    before = sorted(book.parent.rglob("*"))
    found = told("verify-resume", client.model, *service)
    assert (found["equal"], found["from_call"], found["done"]) == (True, 1, 8)
    assert found["chain"] == client.chains[-1]
    later = told("verify-resume", client.model, "--from", "9", *service)
    assert (later["equal"], later["from_call"]) == (True, 9)
    assert told("verify-resume", client.model, "--from", "4", *service)["from_call"] == 1
    assert sorted(book.parent.rglob("*")) == before


@pytest.mark.parametrize("seq", [2, 4])
async def test_a_call_that_was_changed_is_the_first_that_differs(kept, seq):
    book, client, service = kept
    other = encode_fact(OptimStep(learning_rate=5e-2, eps=1e-8))
    sql = "UPDATE calls SET call = ?, digest = ? WHERE seq = ? AND line = ?"
    change(book, sql, other, digest_fact(other), seq, client.model)
    code, said = code_of("verify-resume", client.model, *service, "--output", "json")
    found = json.loads(said)
    assert (code, found["equal"], found["differs"]["call"], found["done"]) == (
        1,
        False,
        seq,
        seq - 1,
    )
    assert found["differs"]["chain"] == client.chains[seq - 1] != found["differs"]["again"]


@pytest.mark.parametrize(
    ("sql", "call"),
    [
        ("UPDATE calls SET call = x'00' WHERE seq = 3 AND line = ?", 3),
        ("DELETE FROM calls WHERE seq = 5 AND line = ?", 5),
        ("UPDATE calls SET answer = NULL, chain = NULL WHERE seq = 2 AND line = ?", 2),
        ("UPDATE calls SET chain = 'blake3:00' WHERE seq = 6 AND line = ?", 6),
    ],
)
async def test_damage_is_told_at_its_call(kept, sql, call):
    book, client, service = kept
    change(book, sql, client.model)
    code, said = code_of("verify-resume", client.model, *service)
    assert code == 1
    assert f"call {call} DIFFERS" in said


async def test_a_call_that_waits_is_not_compared_and_other_numerics_are_refused(kept):
    book, client, service = kept
    change(
        book,
        "UPDATE calls SET answer = NULL, chain = NULL WHERE seq = 8 AND line = ?",
        client.model,
    )
    code, said = code_of("verify-resume", client.model, *service)
    assert (code, "call 8 is not answered yet" in said) == (0, True)
    with pytest.raises(SpecError, match=r"it is .*, the model is over"):
        code_of("verify-resume", client.model, "--base", "rollout://tiny-adder?steps=0", *service)
    change(book, "UPDATE book SET identity = ?", json.dumps({"torch": "0.1"}))
    with pytest.raises(SpecError, match=r"torch was 0\.1"):
        code_of("verify-resume", client.model, *service)


async def test_a_running_service_is_compared_too(served):
    running, client, service = served
    here = runtime_identity(world_size=1, device=CPU)
    book = running.folder / "calls.sqlite"
    change(book, "UPDATE book SET identity = ?", msgspec.json.encode(here).decode())
    await client.answer(await client.backward([sequence_datum()]))
    assert told("verify-resume", client.model, *service)["chain"] == client.chains[-1]
