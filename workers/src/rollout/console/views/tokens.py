"""One sample token by token, a window at a time: what was read, sampled and trained on, and how sure the policy was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from rollout.codec import Columns
from rollout.console.asking import answer, choice_of, folder_of, number_of
from rollout.console.render import render
from rollout.console.views.sampling import sample_of
from rollout.errors import RolloutError, SpecError
from rollout.ledger.sql.browsing import read_columns
from rollout.report.gather import open_ledger, read_config

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WINDOW, ROWS = 2000, 500
"""Tokens at a time, as text and as a table."""
TOKENIZERS_MAX = 4
TURNS_MAX = 100
TOKENS_MAX = 1 << 31
HEATS = (0.9, 0.7, 0.5, 0.3, 0.1)
"""From so much probability on a token is of heat 0, 1, ...; below all of them of the last."""

routes = web.RouteTableDef()


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token at place ``at``. ``text`` None: nobody knows its text. ``mask`` 1: it is trained on."""

    at: int
    id: int
    text: str | None
    source: str
    mask: int
    logprob: float | None = None
    version: int | None = None

    @property
    def probability(self) -> float | None:
        """Under the distribution that it was sampled from."""
        return None if self.logprob is None else math.exp(min(0.0, self.logprob))

    @property
    def heat(self) -> int | None:
        """0: as good as certain; len(HEATS): a surprise."""
        p = self.probability
        if p is None:
            return None
        return next((heat for heat, least in enumerate(HEATS) if p >= least), len(HEATS))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWindow:
    """Tokens ``start`` to ``start + len(tokens)`` of ``number``; ``turns`` are the places where another one speaks.

    They are those of the first of ``num_rows`` rows.
    """

    tokens: tuple[Token, ...]
    start: int
    number: int
    num_prompt: int
    turns: tuple[tuple[int, str], ...]
    has_text: bool
    num_rows: int = 1


def read_window(
    folder: Path, task: str, sample: int, start: int, size: int = WINDOW
) -> TokenWindow | None:
    """A window; None where the tokens are no longer kept. Raises SpecError, LedgerError."""
    with open_ledger(folder) as ledger, ledger.snapshot() as tx:
        made = read_columns(tx, task, sample, ledger.have)
    return None if made is None else cut_window(made, start, find_tokenizer(folder), size)


def cut_window(
    made: Columns, start: int, tokenizer: Tokenizer | None, size: int = WINDOW
) -> TokenWindow:
    """The window of ``made`` from ``start`` on. Raises SpecError for a start behind the last token."""
    number = len(made.prompt_ids) + len(made.token_ids)
    if start and start >= number:
        raise SpecError(f"from={start}: this sample has {number} tokens, from 0 on")
    return TokenWindow(
        tokens=tuple(_tokens(made, start, min(number, start + size), tokenizer)),
        start=start,
        number=number,
        num_prompt=len(made.prompt_ids),
        turns=tuple(_turns(made)),
        has_text=tokenizer is not None,
        num_rows=made.num_rows,
    )


def _tokens(made: Columns, start: int, stop: int, tokenizer: Tokenizer | None) -> Iterator[Token]:
    prompt = len(made.prompt_ids)
    for at in range(start, stop):
        own = at - prompt
        token = made.prompt_ids[at] if own < 0 else made.token_ids[own]
        text = None if tokenizer is None else tokenizer.decode([token], skip_special_tokens=False)
        if own < 0:
            yield Token(at=at, id=token, text=text, source="prompt", mask=0)
        elif not made.loss_mask[own]:
            yield Token(at=at, id=token, text=text, source="environment", mask=0)
        else:
            logprob, version = made.actor_logprobs[own], _version(made, own)
            yield Token(
                at=at,
                id=token,
                text=text,
                source="policy",
                mask=1,
                logprob=logprob,
                version=version,
            )


def _version(made: Columns, own: int) -> int | None:
    return next((one.step for one in made.spans if one.start <= own < one.end), None)


def _turns(made: Columns) -> Iterator[tuple[int, str]]:
    """Where the policy and the environment begin to speak, the first TURNS_MAX places."""
    prompt, found, before = len(made.prompt_ids), 0, -1
    if prompt:
        yield 0, "prompt"
    mask, at = made.loss_mask, 0
    while at < len(mask) and found < TURNS_MAX:
        before = mask[at]
        yield prompt + at, "policy" if before else "environment"
        following = mask.find(1 - before, at)
        at, found = len(mask) if following < 0 else following, found + 1


def find_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a run's model; None where its folder is gone."""
    model = read_config(folder)["resolved"].get("modelPath")
    return load_tokenizer_of(Path(model)) if model else None


def load_tokenizer_of(model: Path) -> Tokenizer | None:
    """The tokenizer in a model's folder; None where none can be read there."""
    path = model / "tokenizer.json"
    return _load(model, path.stat().st_mtime_ns) if path.is_file() else None


@lru_cache(maxsize=TOKENIZERS_MAX)
def _load(model: Path, changed: int) -> Any:
    del changed  # another file is another tokenizer
    from rollout.rendering.tokenizer import load_tokenizer

    try:
        return load_tokenizer(model).tokenizer
    except RolloutError:
        return None


@routes.get("/runs/{run}/tokens")
async def show_tokens(request: web.Request) -> web.Response:
    """A window of one sample's tokens, as text or as a table."""
    folder = folder_of(request)
    (task, number), start = sample_of(request), number_of(request, "from", most=TOKENS_MAX) or 0
    form = choice_of(request, "as", ("text", "table"))

    size = WINDOW if form == "text" else ROWS

    def make() -> str:
        found = read_window(folder, task, number, start, size)
        return render(
            "tokens.html",
            run=folder.name,
            task=task,
            sample=number,
            found=found,
            form=form,
            window=size,
            heats=HEATS,
        )

    return await answer(request, make)
