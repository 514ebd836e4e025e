"""Each instruction as a function of the reply and its arguments. Facts: ``lm_eval/tasks/ifeval`` of 0.4.13. Pure.

Patterns that come from the data (keywords are regular expressions) may be slow: the caller has a deadline.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollout.evaluations.scoring.ifeval.language import is_language
from rollout.evaluations.scoring.ifeval.words import count_sentences, word_tokens

Arguments = Mapping[str, Any]
_FENCES = ("```json", "```Json", "```JSON", "```")
_CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_WORD_ENDS = frozenset(".,?!'\"")


@dataclass(frozen=True, slots=True)
class Check:
    """``follows(reply, arguments)``, and the arguments that it cannot do without."""

    follows: Callable[[str, Arguments], bool]
    needs: tuple[str, ...] = ()


def _compare(count: int, relation: str, bound: float) -> bool:
    return count < bound if relation == "less than" else count >= bound


def _existence(reply: str, given: Arguments) -> bool:
    return all(re.search(word, reply, flags=re.IGNORECASE) for word in given["keywords"])


def _frequency(reply: str, given: Arguments) -> bool:
    found = re.findall(given["keyword"].strip(), reply, flags=re.IGNORECASE)
    return _compare(len(found), given["relation"], given["frequency"])


def _forbidden(reply: str, given: Arguments) -> bool:
    words = given["forbidden_words"]
    return not any(re.search(rf"\b{word}\b", reply, flags=re.IGNORECASE) for word in words)


def _letters(reply: str, given: Arguments) -> bool:
    count = reply.lower().count(given["letter"].strip().lower())
    return _compare(count, given["let_relation"], given["let_frequency"])


def _language(reply: str, given: Arguments) -> bool:
    return is_language(reply, given["language"])


def _sentences(reply: str, given: Arguments) -> bool:
    return _compare(count_sentences(reply), given["relation"], given["num_sentences"])


def _words(reply: str, given: Arguments) -> bool:
    return _compare(len(re.findall(r"\w+", reply)), given["relation"], given["num_words"])


def _paragraphs(reply: str, given: Arguments) -> bool:
    parts = re.split(r"\s?\*\*\*\s?", reply)
    full = [bool(part.strip()) for part in parts]
    return all(full[1:-1]) and sum(full) == given["num_paragraphs"]


def _nth_first_word(reply: str, given: Arguments) -> bool:
    parts = reply.split("\n\n")
    num, nth = sum(bool(part.strip()) for part in parts), given["nth_paragraph"]
    if nth > num or num != given["num_paragraphs"] or not parts[nth - 1].strip():
        return False
    return _first_word(parts[nth - 1]) == given["first_word"].lower()


def _first_word(paragraph: str) -> str:
    word = paragraph.split(maxsplit=1)[0].lstrip("'").lstrip('"')
    ends = [place for place, letter in enumerate(word) if letter in _WORD_ENDS]
    return word[: ends[0] if ends else None].lower()


def _placeholders(reply: str, given: Arguments) -> bool:
    return len(re.findall(r"\[.*?\]", reply)) >= given["num_placeholders"]


def _postscript(reply: str, given: Arguments) -> bool:
    marker = given["postscript_marker"].strip()
    known = {"P.P.S": r"\s*p\.\s?p\.\s?s.*$", "P.S.": r"\s*p\.\s?s\..*$"}
    pattern = known.get(marker, rf"\s*{marker.lower()}.*$")
    return re.search(pattern, reply.lower(), flags=re.MULTILINE) is not None


def _bullets(reply: str, given: Arguments) -> bool:
    stars = re.findall(r"^\s*\*[^\*].*$", reply, flags=re.MULTILINE)
    dashes = re.findall(r"^\s*-.*$", reply, flags=re.MULTILINE)
    return len(stars) + len(dashes) == given["num_bullets"]


def _constrained(reply: str, _: Arguments) -> bool:
    return any(one in reply for one in _CONSTRAINED)


def _highlights(reply: str, given: Arguments) -> bool:
    single = [one.strip("*") for one in re.findall(r"\*[^\n\*]*\*", reply)]
    double = [one[2:-2] for one in re.findall(r"\*\*[^\n\*]*\*\*", reply)]
    return sum(bool(one.strip()) for one in (*single, *double)) >= given["num_highlights"]


def _sections(reply: str, given: Arguments) -> bool:
    splitter = given["section_spliter"].strip()
    return len(re.split(rf"\s?{splitter}\s?\d+\s?", reply)) - 1 >= given["num_sections"]


def _json(reply: str, _: Arguments) -> bool:
    text = reply.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _title(reply: str, _: Arguments) -> bool:
    found = re.findall(r"<<[^\n]+>>", reply)
    return any(one.lstrip("<").rstrip(">").strip() for one in found)


def _two_responses(reply: str, _: Arguments) -> bool:
    parts = [part.strip() for part in reply.split("******")]
    said = [part for part in parts if part]
    return all(parts[1:-1]) and len(said) == 2 and said[0] != said[1]


def _repeat_prompt(reply: str, given: Arguments) -> bool:
    return reply.strip().lower().startswith(given["prompt_to_repeat"].strip().lower())


def _end(reply: str, given: Arguments) -> bool:
    return reply.strip().strip('"').lower().endswith(given["end_phrase"].strip().lower())


def _quotation(reply: str, _: Arguments) -> bool:
    text = reply.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def _capital_words(reply: str, given: Arguments) -> bool:
    count = sum(word.isupper() for word in word_tokens(reply))
    return _compare(count, given["capital_relation"], given["capital_frequency"])


def _capitals(reply: str, _: Arguments) -> bool:
    return reply.isupper() and is_language(reply, "en")


def _lowercase(reply: str, _: Arguments) -> bool:
    return reply.islower() and is_language(reply, "en")


def _no_comma(reply: str, _: Arguments) -> bool:
    return "," not in reply


CHECKS: Mapping[str, Check] = {
    "keywords:existence": Check(_existence, ("keywords",)),
    "keywords:frequency": Check(_frequency, ("keyword", "frequency", "relation")),
    "keywords:forbidden_words": Check(_forbidden, ("forbidden_words",)),
    "keywords:letter_frequency": Check(_letters, ("letter", "let_frequency", "let_relation")),
    "language:response_language": Check(_language, ("language",)),
    "length_constraints:number_sentences": Check(_sentences, ("num_sentences", "relation")),
    "length_constraints:number_paragraphs": Check(_paragraphs, ("num_paragraphs",)),
    "length_constraints:number_words": Check(_words, ("num_words", "relation")),
    "length_constraints:nth_paragraph_first_word": Check(
        _nth_first_word, ("num_paragraphs", "nth_paragraph", "first_word")
    ),
    "detectable_content:number_placeholders": Check(_placeholders, ("num_placeholders",)),
    "detectable_content:postscript": Check(_postscript, ("postscript_marker",)),
    "detectable_format:number_bullet_lists": Check(_bullets, ("num_bullets",)),
    "detectable_format:constrained_response": Check(_constrained),
    "detectable_format:number_highlighted_sections": Check(_highlights, ("num_highlights",)),
    "detectable_format:multiple_sections": Check(_sections, ("section_spliter", "num_sections")),
    "detectable_format:json_format": Check(_json),
    "detectable_format:title": Check(_title),
    "combination:two_responses": Check(_two_responses),
    "combination:repeat_prompt": Check(_repeat_prompt, ("prompt_to_repeat",)),
    "startend:end_checker": Check(_end, ("end_phrase",)),
    "startend:quotation": Check(_quotation),
    "change_case:capital_word_frequency": Check(
        _capital_words, ("capital_frequency", "capital_relation")
    ),
    "change_case:english_capital": Check(_capitals),
    "change_case:english_lowercase": Check(_lowercase),
    "punctuation:no_comma": Check(_no_comma),
}
"""By the data's own ids."""
