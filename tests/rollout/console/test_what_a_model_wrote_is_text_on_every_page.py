"""Whatever a policy, a row or a user wrote: a page shows it, and a browser makes no element, no address and no order of it."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from book_kit import open_book, write_tokenizer
from console_kit import Page, make_run, open_run

from rollout.service.calls import ForwardBackward, RefusedAnswer, encode_fact

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</td></tr></table><iframe src='https://example.org'></iframe>",
    "<svg/onload=alert(1)>",
    "\"><a href='javascript:alert(1)'>press</a>",
    "{{ 7 * 7 }} {% raw %}",
    "<style>*{display:none}</style><base href='https://example.org/'>",
    "&lt;script&gt; &#60;b&#62;",
    "\x1b]0;title\x07 \x00 \u202eright to left\u202c \u2066x\u2069",
    "<!--",
    "]]>",
    "https://example.org/",
]
OURS = {
    "html", "head", "meta", "title", "link", "script", "body", "a", "header", "nav", "main", "h1", "h2", "p", "div",
    "section", "table", "caption", "thead", "tbody", "tr", "th", "td", "span", "form", "label", "input", "select",
    "option", "button", "pre", "code", "svg", "path", "text", "rect", "circle", "figure", "figcaption", "details",
    "summary", "strong", "q", "meter", "i",
}  # fmt: skip
SCRIPTS = ["/static/live.js", "/static/keys.js"]
HIDDEN = "\x1b\x00\x07\u202e\u202c\u2066\u2069"


ENDS = [
    "", "/curves", "/steps", "/steps/3", "/samples", "/samples?sort=-reward", "/samples?text=<img", "/evaluations", "/workers", "/snapshots", "/logs",
]  # fmt: skip


MODEL = "<img src=x onerror=alert(1)>:train:0"
CALLS = 2 * len(HOSTILE)


def write_hostile_book(console) -> None:
    """A service where everybody wrote such things: keys' names, bases, losses, errors, names of weights, texts."""
    uri = write_tokenizer(console.home / ".base", HOSTILE)
    book = open_book(
        console.home / "service",
        model=MODEL,
        owner=HOSTILE[1],
        base=HOSTILE[0],
        uri=f"{uri}",
        identity="".join(HOSTILE),
    )
    for at, text in enumerate(HOSTILE):
        book.make(ForwardBackward(text, {text: text}, True, ()), RefusedAnswer(text))
        sampler = book.save(text if at % 2 else None)
        book.sample(sampler, 0, [(at, at), tuple(range(len(HOSTILE)))], range(len(HOSTILE)))
        book.ask_sample(sampler, 1, 1, stop=text)
        book.calls.answer(sampler, 1, encode_fact(RefusedAnswer(text)), "")
    book.step(tokens=range(len(HOSTILE)))
    book.calls.close()


def paths_of_model() -> list[str]:
    start = f"/models/{quote(MODEL, safe='')}"
    sampler = quote(f"{MODEL}:sampler:2", safe="")
    return [
        start,
        f"{start}/calls",
        f"{start}/samples",
        f"{start}/saved",
        f"{start}/samples?before=15",
        *(f"{start}/calls/{seq}" for seq in (1, 3, 5, 7, 8, CALLS + 1, CALLS + 2)),
        *(f"{start}/sample?save=2&sampler={sampler}&call=0&place={place}" for place in (0, 1)),
        f"{start}/sample?save=4&sampler=5e55:sample:4&call=0&place=1",
    ]


async def pages_of(console, name: str):
    paths = [
        "/",
        *(f"/runs/{name}{end}" for end in ENDS),
    ]
    paths += [f"/runs/{name}/sample?task=t/{task}&sample=0" for task in range(len(HOSTILE))]
    for form in ("text", "table"):
        paths.append(f"/runs/{name}/tokens?task=t/0&sample=0&as={form}")
    paths.append(f"/compare?run={name}&run=other-1")
    paths += paths_of_model()
    _, refusal = await console.get("/models/<script>alert(1)<%2Fscript>")
    return [*[Page(await console.page(path)) for path in paths], Page(refusal)]


@pytest.fixture
async def pages(console):
    ledger = await open_run(
        console.home,
        "hostile-1",
        HOSTILE,
        prompt="".join(HOSTILE),
        spec={
            "model": {"uri": HOSTILE[0]},
            "train": {"algorithm": {"grpo": {}}, "maxSteps": 9},
        },
    )
    for text in HOSTILE:
        await ledger.add_event(text.replace("\x00", ""), text.replace("\x00", ""), {})
    await ledger.close()
    logs = console.home / "hostile-1" / "logs"
    logs.mkdir()
    logs.joinpath("actor-0.log").write_text("\n".join(HOSTILE))
    await make_run(console.home, "other-1", ["5"])
    write_hostile_book(console)
    return await pages_of(console, "hostile-1")


async def test_no_page_has_an_element_that_is_not_ours(pages):
    assert {tag for page in pages for tag, _ in page.elements} <= OURS


async def test_no_page_has_a_script_a_style_or_a_handler_in_it(pages):
    for page in pages:
        assert page.named("script") == [{"type": "module", "src": one} for one in SCRIPTS]
        names = {name for _, attributes in page.elements for name in attributes}
        assert not {name for name in names if name.startswith("on") or name == "style"}


async def test_every_address_of_a_page_leads_into_the_console(pages):
    for page in pages:
        for name in ("href", "src", "action"):
            found = [one[name] for _, one in page.elements if name in one]
            assert all(
                one.startswith(("/", "?", "#")) and not one.startswith("//") for one in found
            )


async def test_characters_that_hide_or_turn_text_are_shown_as_escapes(pages):
    everything = "".join(page.text for page in pages)

    assert not set(everything) & set(HIDDEN)
    assert "\\u202eright to left" in everything
    assert "\\x1b]0;title" in everything


async def test_what_was_written_is_shown_as_it_was_written(pages):
    everything = "".join(page.text for page in pages)

    for text in HOSTILE[:8]:
        assert text in everything


async def test_what_a_services_clients_wrote_is_shown_as_they_wrote_it(console):
    write_hostile_book(console)
    pages = [Page(await console.page(path)) for path in paths_of_model()]
    everything = "".join(page.text for page in pages)

    for text in (*HOSTILE[:8], MODEL):
        assert text in everything
    assert not set(everything) & set(HIDDEN)


async def test_a_folder_may_have_any_name(console):
    name = "a b\"><script>&'-1"
    await make_run(console.home, name, ["5"])

    listed = Page(await console.page("/"))
    [link] = [one["href"] for one in listed.named("a") if "/runs/" in one["href"]]

    assert name in Page(await console.page(link)).text
    assert len(listed.named("script")) == len(SCRIPTS)
