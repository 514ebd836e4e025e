"""Models of a training service stand beside runs: where each stands, its calls, its curves, what was sampled from it."""

from __future__ import annotations

import asyncio
import re

import pytest
from book_kit import DIGEST, MODEL, open_book, write_tokenizer
from console_kit import Page, make_run
from test_a_page_follows_its_run import read_event

from rollout.cli.ui import ui
from rollout.console import live
from rollout.console.models import counting, listing, sampling
from rollout.console.models.calls import PAGE_ROWS
from rollout.console.models.counting import ModelCounts
from rollout.errors import SpecError
from rollout.ledger.sqlite.call_reader import CallBookReader
from rollout.service.calls import OptimStep, RefusedAnswer, SaveState, StepAnswer, encode_fact
from rollout.service.reading.finding import open_by_id
from rollout.service.reading.folding import ModelFold
from rollout.service.reading.leafing import ROWS
from rollout.service.reading.standing import is_served, read_standing
from rollout.service.reading.summary import summarise_model
from rollout.service.registry import SavedChange, booked, saved_path

PAGE = f"/models/{MODEL}"
WORDS = ["nothing", "one", "two", "three", "four"]


@pytest.fixture
def book(console):
    made = open_book(console.home / "service")
    yield made
    made.calls.close()


def some_loop(book) -> None:
    for number in range(25):
        book.step(loss=5.0 - number / 10)
    book.refuse("data[0]: expected 3 weights, got 1")
    book.sample(book.save(), 0, [(3, 4), (3,)])


async def test_a_model_stands_in_the_list_beside_runs_and_leads_to_its_page(console, book):
    await make_run(console.home, "sum-1", ["5"])
    some_loop(book)

    listed, found = Page(await console.page("/")), Page(await console.page("/?name=TRAIN"))

    links = {one["href"] for one in listed.named("a")}
    assert {"/runs/sum-1", "/models/5e55%3Atrain%3A0"} <= links
    assert "service, 52 of 52 calls answered" in listed.text
    assert "1 model of the training service" in listed.text
    assert [one["value"] for one in listed.named("input") if one.get("name") == "run"] == ["sum-1"]
    assert "sum-1" not in found.text
    assert MODEL in found.text


async def test_its_page_shows_what_it_is_and_how_it_stands(console, book):
    some_loop(book)

    page = Page(await console.page(PAGE))

    for said in (
        "Running",
        "all 52 calls are answered",
        "ann",
        DIGEST,
        "adapter of rank 4, alpha 32, on Attention, Mlp, seed 7",
        "file:///nowhere",
        "0 wait, 1 refused",
        "on 75 tokens",
        "4.55 \u2192 3.05",
        read_standing(CallBookReader(book.folder / "calls.sqlite"), book.model).chain,
    ):
        assert said in page.text
    curves = [one.get("aria-label", "").split(",")[0] for one in page.named("svg")]
    assert curves == ["Loss", "Loss by token", "Gradient norm", "Tokens", "Learning rate"]
    assert len(page.named("h1")) == 1


async def test_a_model_before_its_first_call_has_pages_too(console, book):
    for path in ("", "/calls", "/samples", "/saved"):
        assert (await console.get(f"{PAGE}{path}"))[0] == 200


def test_what_is_counted_in_parts_is_what_the_summary_of_the_whole_book_says(tmp_path):
    book = open_book(tmp_path / "service")
    some_loop(book)
    book.ask(OptimStep())
    fold = ModelFold(chain=book.model.chain)
    with open_by_id(book.folder, MODEL) as opened:
        standing = read_standing(opened.book, opened.model)
        while not fold.is_whole(standing):
            fold.go_on(opened.book, MODEL, standing, 0.0)
        told = summarise_model(opened)
    book.calls.close()

    assert (fold.done, fold.chain, fold.refused) == (
        told["answered"],
        told["chain"],
        told["refused"],
    )
    assert (fold.steps.steps, fold.tokens) == (told["steps"], told["tokens"])
    told["calls"]["optim_step"] -= 1  # the one that is not answered
    assert dict(fold.kinds) == told["calls"]
    assert [one.loss for one in (*fold.first, *fold.last)] == [
        one["loss"] for one in told["losses"]
    ]
    assert standing.words() == told["state"]


async def test_a_large_book_is_counted_while_its_page_is_open(console, book, monkeypatch):
    some_loop(book)
    monkeypatch.setattr(listing, "COUNT_SECONDS", 0.0)
    monkeypatch.setattr(live, "POLL_SECONDS", 0.05)

    before = await console.page("/")
    async with console.client.get(f"{console.url}{PAGE}/live") as answer:
        await read_event(answer)
    after = await console.page(PAGE)

    assert "over 0" in before
    assert "Counted so far" not in after
    assert "on 75 tokens" in after


def test_one_page_at_a_time_counts_and_another_one_looks(tmp_path, monkeypatch):
    book = open_book(tmp_path)
    some_loop(book)
    counts, seen = ModelCounts(), list[int]()
    with open_by_id(tmp_path, MODEL) as first, open_by_id(tmp_path, MODEL) as second:

        def look_meanwhile(_: float) -> None:
            if not seen:
                seen.append(counts.count_on(second, 9.0)[1])

        monkeypatch.setattr(counting, "SLICE_SECONDS", 0.0)
        monkeypatch.setattr(counting.time, "sleep", look_meanwhile)
        whole = counts.count_on(first, 9.0)[1]
    book.calls.close()

    assert (seen, whole) == ([2], 52)


async def test_what_is_not_counted_yet_is_said(console, book, monkeypatch):
    some_loop(book)
    monkeypatch.setattr(ModelFold, "is_whole", lambda fold, standing: False)
    monkeypatch.setattr(ModelFold, "go_on", lambda *given: None)

    page = await console.page(PAGE)

    assert "Counted so far: calls 1 to 0 of 52" in page
    assert f'data-live="/models/{MODEL.replace(":", "%3A")}/live"' in page


async def test_calls_are_leafed_through_from_the_newest_to_the_first(console, book):
    for _ in range(PAGE_ROWS + 2):
        book.step()
    seen: list[str] = []
    path = f"{PAGE}/calls"
    while path:
        page = Page(await console.page(path))
        seen += [m[1] for one in page.named("a") if (m := re.search(r"/calls/(\d+)$", one["href"]))]
        older = [one["href"] for one in page.named("a") if one.get("rel") == "next"]
        path = f"{PAGE}/calls{older[0]}" if older else ""

    assert seen == [str(seq) for seq in range(2 * PAGE_ROWS + 4, 0, -1)]


async def test_a_call_shows_what_was_asked_and_came_of_it(console, book):
    book.step(loss=3.0)
    book.refuse("no such loss")

    page, refused = [Page(await console.page(f"{PAGE}/calls/{seq}")) for seq in (1, 3)]

    assert "cross_entropy of 1 sequences, 3 tokens" in page.text
    assert "#1 #2 #3" in page.text
    assert "Ids instead of texts" in page.text
    assert book.model.chain in page.text
    assert "refused: no such loss" in refused.text
    assert (await console.get(f"{PAGE}/calls/9"))[0] == 404


async def test_samples_have_texts_where_the_tokenizer_of_the_base_is(console, tmp_path):
    uri = write_tokenizer(tmp_path / "base", WORDS)
    book = open_book(console.home / "service", uri=uri)
    some_loop(book)

    page = Page(await console.page(f"{PAGE}/samples"))
    [first, *_] = [one["href"] for one in page.named("a") if "sample?" in one["href"]]
    sample = Page(await console.page(first))
    book.calls.close()

    assert "three four" in page.text
    assert f"tokenizer that lies at {uri}" in page.text
    assert "Completion 0 of sampling call 0" in sample.text
    assert "one two" in sample.text
    assert [one["data-n"] for one in sample.named("i") if "data-n" in one][-1] == "4 -0.5000 25"


async def test_samples_are_leafed_through_from_the_newest_weights_to_the_first(console, book):
    wanted: list[str] = []
    for name in (None, "named", None, None):
        book.step()
        sampler = book.save(name)
        for call in range(ROWS // 3):
            book.sample(sampler, call, [(1,), (2,)])
            wanted.append(f"{sampler} {call}")
    seen: list[str] = []
    path = f"{PAGE}/samples"
    while path:
        page = Page(await console.page(path))
        links = [one["href"] for one in page.named("a") if "sample?" in one["href"]]
        seen += [
            f"{m[1]} {m[2]}".replace("%3A", ":")
            for one in links
            if one.endswith("place=0") and (m := re.search("sampler=(.*)&call=(\\d+)", one))
        ]
        older = [one["href"] for one in page.named("a") if one.get("rel") == "next"]
        path = f"{PAGE}/samples{older[0]}" if older else ""

    assert sorted(seen) == sorted(wanted)
    of_step = Page(await console.page(f"{PAGE}/samples?step=2"))
    links = [one["href"] for one in of_step.named("a") if "sample?" in one["href"]]
    assert {re.search("save=(\\d+)", one)[1] for one in links} == {"6"}
    assert "Nothing was sampled" in await console.page(f"{PAGE}/samples?step=9")


async def test_a_sampling_call_without_an_answer_and_a_refused_one_say_so(console, book):
    sampler = book.save()
    book.ask_sample(sampler, 0, 2)
    book.ask_sample(sampler, 1, 2)
    book.calls.answer(sampler, 1, encode_fact(RefusedAnswer("prompt: too long")), "")

    page = Page(await console.page(f"{PAGE}/samples"))

    assert "not answered yet" in page.text
    assert "refused: prompt: too long" in page.text


async def test_of_a_call_with_many_completions_some_are_listed_and_all_have_pages(console, book):
    sampler = book.save()
    book.sample(sampler, 0, [(1,)] * (sampling.SHOWN_OF_CALL + 3))

    page = Page(await console.page(f"{PAGE}/samples"))
    links = [one["href"] for one in page.named("a") if "sample?" in one["href"]]
    last = links[-1].replace(
        f"place={sampling.SHOWN_OF_CALL - 1}", f"place={sampling.SHOWN_OF_CALL + 2}"
    )

    assert len(links) == sampling.SHOWN_OF_CALL
    assert "28 of 28" in Page(await console.page(last)).text
    assert (await console.get(last.replace("place=27", "place=28")))[0] == 404


async def test_a_model_whose_service_died_in_a_call_says_which_waits(console, book):
    book.step()
    book.ask(OptimStep())
    book.ask(OptimStep(), seq=5)
    book.calls.close()

    page = Page(await console.page(PAGE))

    assert "Interrupted" in page.text
    assert "call 4 has not come, 2 later ones wait for it" in page.text
    assert page.named("body") == [{}]


async def test_a_book_with_a_hole_or_damage_is_named_at_the_call_and_shown_before_it(console, book):
    import sqlite3
    from contextlib import closing

    for _ in range(3):
        book.step()
    book.calls.close()

    def change(sql: str) -> None:
        with closing(sqlite3.connect(book.folder / "calls.sqlite")) as connection, connection:
            connection.execute(sql)

    change("UPDATE calls SET call = x'00' WHERE seq = 5")
    damaged = Page(await console.page(PAGE))
    assert "call 5 of 5e55:train:0 is damaged" in damaged.text
    assert "call 5 of 5e55:train:0 is damaged" in await console.page(f"{PAGE}/calls")
    change("DELETE FROM calls WHERE seq = 3")
    hole = Page(await console.page(PAGE))
    assert "call 3 is not answered in the book, though call 6 is" in hole.text
    assert "Broken" in Page(await console.page("/")).text


async def test_another_book_in_the_same_place_is_counted_from_its_beginning(console, book):
    book.step(loss=8.0)
    book.step()
    first = await console.page(PAGE)
    book.calls.close()
    for path in book.folder.iterdir():
        path.unlink()
    other = open_book(console.home / "service", owner="bob")
    other.refuse("other")

    second = await console.page(PAGE)
    other.calls.close()

    assert "on 6 tokens" in first
    assert "on 0 tokens" in second
    assert "bob" in second


async def test_a_page_is_told_when_its_model_has_moved(console, book, monkeypatch):
    monkeypatch.setattr(live, "POLL_SECONDS", 0.05)
    book.step()

    async with console.client.get(f"{console.url}{PAGE}/live") as answer:
        first = await read_event(answer)
        await asyncio.to_thread(book.step)
        second = await read_event(answer)

    assert second["position"] > first["position"] or second["state"] != first["state"]


async def test_looking_writes_nothing_into_a_services_folder(console, book):
    some_loop(book)
    book.calls.close()
    before = {path.name: path.read_bytes() for path in book.folder.iterdir()}

    for path in ("/", PAGE, f"{PAGE}/calls", f"{PAGE}/calls/1", f"{PAGE}/samples"):
        await console.page(path)

    assert {path.name: path.read_bytes() for path in book.folder.iterdir()} == before


async def test_a_book_that_cannot_be_read_hides_no_run(console, book):
    await make_run(console.home, "sum-1", ["5"])
    book.calls.close()
    (book.folder / "calls.sqlite").write_bytes(b"no book at all" * 999)

    page = Page(await console.page("/"))

    assert "sum-1" in page.text
    assert "Models of the training service are left out" in page.text
    assert (await console.get(PAGE))[0] == 500


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/models/nobody", "no model 'nobody'"),
        ("/models/5e55", "no model '5e55'"),
        (f"/models/{'x' * 500}", "no model"),
        (f"{PAGE}/calls?before=-1", "before=-1"),
        (f"{PAGE}/samples?before=x", "before=x"),
        (f"{PAGE}/sample", "save=..., sampler=..."),
        (f"{PAGE}/sample?save=1&sampler=other&call=0&place=0", "nothing was sampled there"),
    ],
)
async def test_an_address_that_names_nothing_says_what_there_is(console, book, path, said):
    some_loop(book)

    status, text = await console.get(path)

    assert status == 404
    assert said in Page(text).text


def test_a_folder_without_a_book_is_refused_where_it_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"--service .*: no service has kept a book there"):
        ui(runs=tmp_path, service=tmp_path / "elsewhere")


async def test_a_model_without_an_adapter_is_one_of_full_weights(console):
    book = open_book(console.home / "service", adapter=None)
    book.step()

    page = Page(await console.page(PAGE))
    book.calls.close()

    assert "full weights over tiny" in page.text
    assert "all weights" in page.text


async def test_what_was_saved_stands_with_what_became_of_it(console, book):
    for name in ("first", "second", "third"):
        book.save(name)
    for name, *changes in (("first", "published", "deleted"), ("third", "published")):
        path = saved_path(MODEL, name)
        for number, change in enumerate(changes):
            book.calls.put(
                booked(SavedChange(id=f"{path}#{number}", owner="ann", path=path, change=change))
            )

    page = Page(await console.page(f"{PAGE}/saved"))

    found = re.findall("(first|second|third)weights.*?(deleted|published|kept)", page.text)
    assert found == [("third", "published"), ("second", "kept"), ("first", "deleted")]
    assert "Nothing was saved" in await console.page(f"{PAGE}/saved?page=2")


def test_a_service_is_running_for_as_long_as_it_holds_its_book(tmp_path):
    book = open_book(tmp_path)
    while_open = is_served(tmp_path)
    book.calls.close()

    assert (while_open, is_served(tmp_path)) == (True, False)


def test_a_save_of_a_state_is_none_to_sample_from(tmp_path):
    from rollout.service.calls import SavedAnswer

    book = open_book(tmp_path)
    book.make(SaveState("s"), SavedAnswer(digest=DIGEST, name="s", state=True))
    book.make(OptimStep(), StepAnswer(metrics={}))
    with open_by_id(tmp_path, MODEL) as opened:
        standing = read_standing(opened.book, opened.model)
        fold = ModelFold(chain=book.model.chain)
        fold.go_on(opened.book, MODEL, standing, 1.0)
    book.calls.close()

    assert (fold.num_saves, fold.steps.steps) == (0, 1)
