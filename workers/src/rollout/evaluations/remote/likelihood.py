"""How likely given replies are to a server's model: the log-probabilities of a prompt, where the server tells them.

Two forms of OpenAI's completions: ``echo`` with ``logprobs`` (as lm-evaluation-harness's ``local-completions`` asks), and
vLLM's ``prompt_logprobs``. The tokens of a reply are those that text and reply have together behind those that the text
has alone, as ``rendering.choices`` says; here the server tells both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from rollout.errors import DataError, SpecError
from rollout.rewards.chat_endpoint import Endpoint, RequestRefused, Said, TryAgain, post

PATH = "/completions"
PROBE = "The sea is blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The tokens of a prompt as the server names them, and their log-probabilities; the first has none."""

    tokens: tuple[str, ...]
    logprobs: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a server is asked for the log-probabilities of a prompt, and how its answer is read (None: it tells none)."""

    name: str
    asked: Mapping[str, Any]
    read: Callable[[Mapping[str, Any], int | None], Told | None]


def find_form(client: httpx.Client, endpoint: Endpoint) -> Form:
    """The form that the server answers. Raises SpecError where it answers none, InfrastructureError."""
    said = []
    for form in FORMS:
        try:
            told = _ask(client, endpoint, form, PROBE)
        except RequestRefused as error:
            said.append(f"{form.name}: {error}")
            continue
        if told is not None and len(told.tokens) > 1:
            return form
        said.append(f"{form.name}: the answer has none")
    raise SpecError(
        f"{endpoint.url}{PATH} does not tell the log-probabilities of a prompt ({'; '.join(said)[:600]}): measure the"
        " model here (--model, --run), or ask mmlu-generative"
    )


def score_choices(
    client: httpx.Client, endpoint: Endpoint, form: Form, text: str, choices: Sequence[str]
) -> Said:
    """The likeliest choice behind a text, the first of equals, and how likely each is.

    Raises DataError for a choice that has no tokens of its own, RequestRefused, InfrastructureError.
    """
    before = _require(_ask(client, endpoint, form, text.rstrip()), endpoint)
    sums = tuple(
        _sum(before, _require(_ask(client, endpoint, form, text + choice), endpoint), choice)
        for choice in choices
    )
    best = max(range(len(sums)), key=sums.__getitem__)
    return Said(text=choices[best], finish="stop", choice_logprobs=sums)


def _sum(before: Told, whole: Told, choice: str) -> float:
    start = len(before.tokens)
    if whole.tokens[:start] != before.tokens or len(whole.tokens) == start:
        raise DataError(
            f"the server's tokenizer gives the choice {choice!r:.60} no tokens of its own behind its prompt"
            f" {''.join(before.tokens[-4:])!r:.60}; leave such rows out"
        )
    own = whole.logprobs[start:]
    known = [one for one in own if one is not None and math.isfinite(one)]
    if len(known) != len(own):
        raise DataError(f"the server tells no log-probability of the choice {choice!r:.60}")
    return math.fsum(known)


def _require(told: Told | None, endpoint: Endpoint) -> Told:
    if told is None:
        raise RequestRefused(f"{endpoint.url}{PATH} told no log-probabilities of this prompt")
    return told


def _ask(client: httpx.Client, endpoint: Endpoint, form: Form, prompt: str) -> Told | None:
    body = {"model": endpoint.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    return post(client, endpoint, PATH, {**body, **form.asked}, lambda raw: _parse(form, raw))


def _parse(form: Form, raw: bytes) -> Told | None:
    """What the answer tells. Raises TryAgain for one that is no completion."""
    try:
        found = json.loads(raw)
        choice, counted = found["choices"][0], (found.get("usage") or {}).get("prompt_tokens")
        return form.read(choice, counted if isinstance(counted, int) else None)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise TryAgain(f"the answer is no completion: {raw[:200]!r}") from error


def _read_echo(choice: Mapping[str, Any], counted: int | None) -> Told | None:
    """Of the echoed tokens, without the one that was sampled behind them."""
    found = choice.get("logprobs") or {}
    tokens, logprobs = found.get("tokens") or [], found.get("token_logprobs") or []
    if len(tokens) != len(logprobs) or len(tokens) < 2 or logprobs[0] is not None:
        return None
    end = len(tokens) - 1 if counted is None else counted
    if not 0 < end <= len(tokens):
        return None
    return Told(tokens=tuple(map(str, tokens[:end])), logprobs=tuple(map(_number, logprobs[:end])))


def _read_prompt_logprobs(choice: Mapping[str, Any], counted: int | None) -> Told | None:
    del counted
    listed = choice.get("prompt_logprobs") or []
    if len(listed) < 2 or listed[0] is not None:
        return None
    pairs = [next(iter(one.items())) for one in listed[1:]]
    return Told(
        tokens=("", *(token for token, _ in pairs)),
        logprobs=(None, *(_number(told["logprob"]) for _, told in pairs)),
    )


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))


FORMS = (
    Form(name="echo with logprobs", asked={"echo": True, "logprobs": 1}, read=_read_echo),
    Form(name="prompt_logprobs", asked={"prompt_logprobs": 0}, read=_read_prompt_logprobs),
)
