"""Sentences and words of English text by rules of our own: no trained model, no download.

The reference asks NLTK, whose sentences come from trained parameters (punkt) that may not be here. The rules are those of
Kiss and Strunk 2006 without the training: every ``?`` and ``!`` ends a sentence, a full stop does unless it belongs to
an abbreviation, an initial, a number that goes on in lower case, or dots before lower case.
"""

from __future__ import annotations

import re

ABBREVIATIONS = frozenset(
    [
        "adm",
        "ala",
        "ariz",
        "ark",
        "aug",
        "ave",
        "bros",
        "calif",
        "capt",
        "cie",
        "conn",
        "corp",
        "dec",
        "del",
        "dept",
        "dr",
        "feb",
        "ft",
        "gov",
        "inc",
        "jan",
        "jr",
        "kan",
        "lt",
        "ltd",
        "maj",
        "mar",
        "md",
        "messrs",
        "mich",
        "minn",
        "mr",
        "mrs",
        "ms",
        "mt",
        "neb",
        "nev",
        "n.h",
        "n.j",
        "n.m",
        "n.y",
        "n.c",
        "n.d",
        "s.c",
        "s.d",
        "nov",
        "oct",
        "okla",
        "ont",
        "ore",
        "p.m",
        "a.m",
        "ph.d",
        "prof",
        "rep",
        "rev",
        "r.i",
        "s.a",
        "sen",
        "sep",
        "sept",
        "sgt",
        "sr",
        "st",
        "tenn",
        "tex",
        "u.k",
        "u.n",
        "u.s",
        "u.s.a",
        "va",
        "vs",
        "vt",
        "wis",
        "wyo",
    ]
)
_STARTERS = frozenset(
    [
        "a",
        "after",
        "all",
        "also",
        "although",
        "an",
        "and",
        "as",
        "at",
        "but",
        "each",
        "for",
        "from",
        "he",
        "her",
        "his",
        "how",
        "however",
        "i",
        "if",
        "in",
        "it",
        "its",
        "let",
        "many",
        "my",
        "no",
        "now",
        "of",
        "on",
        "one",
        "our",
        "she",
        "since",
        "so",
        "some",
        "that",
        "the",
        "their",
        "then",
        "there",
        "therefore",
        "these",
        "they",
        "this",
        "thus",
        "to",
        "we",
        "what",
        "when",
        "where",
        "while",
        "who",
        "why",
        "with",
        "you",
        "your",
    ]
)
_END = re.compile(r"(\S*?[.?!])(?=[)\"'}\]]*\s+(\S+))")
_OPENING = "\"'([{*"
_INITIAL = re.compile(r"[A-Z]\Z")
_NUMBER = re.compile(r"-?[\d.,]+\Z")
_WORD = re.compile(r"[A-Za-z0-9_]+(?:[-'.][A-Za-z0-9_]+)*|\S")


def count_sentences(text: str) -> int:
    """How many sentences; 0 for a blank text."""
    if not text.strip():
        return 0
    return 1 + sum(_ends_sentence(found) for found in _END.finditer(text))


def _ends_sentence(found: re.Match[str]) -> bool:
    token, after = found.group(1), found.group(2).lstrip(_OPENING)
    if token.endswith(("?", "!")):
        return True
    if token.endswith(".."):
        return after[:1].isupper()
    word = token[:-1].lstrip(_OPENING)
    if word.lower() in ABBREVIATIONS:
        return False
    if _INITIAL.match(word):
        return after[:1].islower() or after.lower() in _STARTERS
    return not (_NUMBER.match(word) and after[:1].islower())


def word_tokens(text: str) -> list[str]:
    """Words, and each other mark by itself; what a hyphen joins is one word."""
    return _WORD.findall(text)
