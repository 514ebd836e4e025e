"""Extraction by regular expression and comparison of texts, as lm-evaluation-harness defines them.

Facts: ``lm_eval/filters/extraction.py`` and the exact match of ``lm_eval/api/metrics.py``, version 0.4.13. Pure.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

INVALID = "[invalid]"
"""What an extraction gives that found nothing; it equals no answer."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def extract(pattern: re.Pattern[str], text: str, place: int = 0) -> str:
    """Match number ``place`` (-1: the last), stripped; of several groups the first that is not empty."""
    found = pattern.findall(text)
    if not found:
        return INVALID
    match = found[place]
    if isinstance(match, tuple):
        match = next((group for group in match if group), INVALID)
    return match.strip()


def exact_match(
    said: str,
    wanted: str,
    *,
    ignored: Sequence[str] = (),
    case: bool = True,
    punctuation: bool = True,
) -> bool:
    """Whether two texts are equal once ``ignored`` patterns, and case or punctuation that do not count, are gone."""
    return _plain(said, ignored, case, punctuation) == _plain(wanted, ignored, case, punctuation)


def _plain(text: str, ignored: Sequence[str], case: bool, punctuation: bool) -> str:  # noqa: FBT001 - private
    for pattern in ignored:
        text = re.sub(pattern, "", text)
    text = text if case else text.lower()
    # The harness compares fixed-width arrays of numpy, which drop NUL characters at the end.
    return (text if punctuation else text.translate(_PUNCTUATION)).rstrip("\0")
