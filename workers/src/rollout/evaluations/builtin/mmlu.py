"""Massive multitask multiple choice (Hendrycks et al. 2021, arXiv:2009.03300), asked as lm-evaluation-harness asks.

``mmlu-generative`` has the letter written; ``mmlu`` and ``mmlu-continuation`` have the four letters, or the four texts,
scored by their log-likelihood. Nothing is generated then, and no chat template is applied.
Rows are those of ``cais/mmlu``: ``question``, ``subject``, four ``choices`` and ``answer`` (0 to 3, or a letter).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from rollout.common.parameters import parse_parameters
from rollout.data.hugging_face import DatasetName
from rollout.data.rows.mapping import FieldMapping
from rollout.data.subset import SubsetSource, read_all
from rollout.environments.single_turn import ChoiceBuilder, SingleTurnBuilder
from rollout.errors import DataError
from rollout.evaluations.builtin.rows import AskedSource, as_prompt, open_rows, take_part
from rollout.evaluations.metrics import Metric
from rollout.evaluations.scoring.likelihood import NORMS
from rollout.evaluations.scoring.mmlu import (
    LETTERS,
    STOP,
    ask,
    ask_openly,
    describe,
    describe_openly,
)
from rollout.evaluations.suites import Context, Suite, SuiteSampling
from rollout.rewards.source import RewardSource
from rollout.seams import DataSource
from rollout.types import Row

HUB = "cais/mmlu"
NEW_TOKENS = 256
LETTER_TOKENS = 16
"""Of `` A``: one in most vocabularies, two where every byte is a token."""
SHOTS_MAX = 5
"""What the data set has of each subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmlu:
    """Parameters: ``uri`` the questions, ``shots_uri`` the examples (of the same fields), ``shots`` how many are shown.

    Empty: ``cais/mmlu`` of the hub. ``subject`` asks only one. The harness shows no example unless told to; 5 is the custom.
    """

    uri: str = ""
    shots_uri: str = ""
    shots: int = 0
    subject: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.shots <= SHOTS_MAX:
            raise ValueError(f"shots: expected 0..{SHOTS_MAX}")


def build_mmlu_generative(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """The letter is generated, and read from the first line of the reply."""
    parameters = parse_parameters(f"suite {name}", Mmlu, given)
    scorer = RewardSource(
        name="mmlu",
        module="rollout.evaluations.scoring.mmlu",
        function="MmluScore",
        counts="exact",
    )
    return Suite(
        name=name,
        split=context.split,
        environment=SingleTurnBuilder,
        rewards=(scorer,),
        source=lambda: open_mmlu(parameters, context),
        sampling=SuiteSampling(stop=STOP, max_new_tokens=NEW_TOKENS),
        metrics=[Metric(name=one, part=f"mmlu/{one}") for one in ("exact", "invalid", "cut")],
    )


def build_mmlu(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """The likeliest of four letters, behind the question with its choices (``mmlu``, template 1)."""
    return _build_scored(name, given, context, _letters, LETTER_TOKENS)


def build_mmlu_continuation(name: str, given: Mapping[str, str], context: Context) -> Suite:
    """The likeliest of four answers, behind the question alone (``mmlu_continuation``, template 1)."""
    return _build_scored(name, given, context, _texts, NEW_TOKENS)


def _build_scored(
    name: str, given: Mapping[str, str], context: Context, style: Style, tokens_max: int
) -> Suite:
    parameters = parse_parameters(f"suite {name}", Mmlu, given)
    scorer = RewardSource(
        name=name,
        module="rollout.evaluations.scoring.likelihood",
        function="ChoiceScore",
        counts="acc",
    )
    return Suite(
        name=name,
        split=context.split,
        environment=ChoiceBuilder,
        rewards=(scorer,),
        source=lambda: open_mmlu(parameters, context, style),
        sampling=SuiteSampling(max_new_tokens=tokens_max),
        metrics=[Metric(name=one, part=f"{name}/{one}") for one in NORMS],
        is_scored=True,
    )


def open_mmlu(parameters: Mmlu, context: Context, style: Style | None = None) -> DataSource:
    """The questions, each under its subject's description and examples. Raises DataError."""
    style = style or _generated
    shots = _open_shots(parameters, context) if parameters.shots else {}
    name = parameters.subject or "all"
    hub = DatasetName(path=HUB, name=name, split="test")
    whole = open_rows(parameters.uri, hub, _MAPPING, context, "suite mmlu")
    whole = _of_subject(whole, parameters)
    for row in read_all(whole):
        style(row)
    part = take_part(whole, context, None)
    return AskedSource(
        part,
        lambda _, row: _asked(row, shots, parameters.shots, style),
        f"{KINDS[style]}/{parameters.shots}/{name}",
    )


def _of_subject(whole: DataSource, parameters: Mmlu) -> DataSource:
    """A file's rows of the one subject that is asked for; the hub has given no others."""
    if not (parameters.uri and parameters.subject):
        return whole
    rows = read_all(whole)
    mine = [place for place, row in enumerate(rows) if row.get("subject") == parameters.subject]
    if not mine:
        raise DataError(
            f"suite mmlu: {parameters.uri} has no row of subject {parameters.subject!r}"
        )
    return SubsetSource(whole, mine, parameters.subject)


_MAPPING = FieldMapping(prompt_field="question")


def _open_shots(parameters: Mmlu, context: Context) -> dict[str, list[Row]]:
    if parameters.uri and not parameters.shots_uri:
        raise DataError(
            "suite mmlu: shots are shown: name their file with shotsUri, or set shots: 0"
        )
    hub = DatasetName(path=HUB, name=parameters.subject or "all", split="dev")
    found: dict[str, list[Row]] = {}
    source = open_rows(parameters.shots_uri, hub, _MAPPING, context, "suite mmlu, its examples")
    for row in read_all(source):
        found.setdefault(str(row["subject"]), []).append(row)
    return found


def _asked(
    row: Row, shots: Mapping[str, Sequence[Row]], num_shots: int, style: Style
) -> dict[str, Any]:
    asked = style(row)
    own = shots.get(asked.subject, ())[:num_shots]
    if len(own) < num_shots:
        raise DataError(
            f"suite mmlu: {num_shots} examples are shown, {asked.subject} has {len(own)}"
        )
    shown = [f"{one.text} {one.right}\n\n" for one in map(style, own)]
    fields = as_prompt("".join([asked.description, *shown, asked.text]))
    scored = {"continuations": [f" {one}" for one in asked.choices], "right": asked.place}
    return {**fields, "answer": asked.right, **(scored if asked.choices else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A row as it is asked: what stands before all else, the question up to its answer's place, the right answer.

    ``choices`` are scored, each behind a space, ``right`` being the one at ``place``; none: the answer is generated.
    """

    subject: str
    description: str
    text: str
    right: str
    place: int
    choices: tuple[str, ...] = ()


Style = Callable[[Row], Question]
"""How a row is asked. Raises DataError naming what it lacks."""


def _generated(row: Row) -> Question:
    subject, choices, place = read_row(row)
    return Question(
        subject=subject,
        description=describe(subject),
        text=ask(str(row["question"]), choices),
        right=LETTERS[place],
        place=place,
    )


def _letters(row: Row) -> Question:
    return replace(_generated(row), choices=tuple(LETTERS))


def _texts(row: Row) -> Question:
    subject, choices, place = read_row(row)
    if not all(choices):
        raise DataError(
            f"suite mmlu: choice {choices.index('')} is empty for {str(row.get('question'))[:60]!r}, which has no"
            " log-likelihood; write its text, or ask for letters (suite mmlu)"
        )
    return Question(
        subject=subject,
        description=describe_openly(subject),
        text=ask_openly(str(row["question"])),
        right=choices[place],
        place=place,
        choices=tuple(choices),
    )


def read_row(row: Row) -> tuple[str, list[str], int]:
    """Subject, choices, and the place of the right one. Raises DataError naming what a row lacks."""
    choices, answer = row.get("choices"), row.get("answer")
    if not _are_choices(choices) or "subject" not in row:
        raise DataError(
            f"suite mmlu: expected subject and four choices for {str(row.get('question'))[:60]!r},"
            f" got subject {row.get('subject')!r} and choices {choices!r:.120}"
        )
    letter = str(answer) if str(answer) in tuple(LETTERS) else _letter(answer)
    if letter is None:
        raise DataError(
            f"suite mmlu: answer is {answer!r}, expected 0 to 3 or A to D, for {str(row.get('question'))[:60]!r}"
        )
    return str(row["subject"]), [str(one) for one in choices], LETTERS.index(letter)


def _are_choices(choices: object) -> TypeGuard[list[str | int | float]]:
    return (
        isinstance(choices, list)
        and len(choices) == len(LETTERS)
        and all(isinstance(one, str | int | float) for one in choices)
    )


def _letter(answer: object) -> str | None:
    try:
        place = int(str(answer))
    except ValueError:
        return None
    return LETTERS[place] if 0 <= place < len(LETTERS) else None


KINDS: Mapping[Style, str] = {_generated: "mmlu", _letters: "mmlu-letters", _texts: "mmlu-texts"}
"""What the digest of asked rows says of how they are asked."""
