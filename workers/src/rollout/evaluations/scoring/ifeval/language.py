"""The language of a text, the same whenever it is asked: ``langdetect`` with a fixed seed.

What has no feature of any language counts as followed, as in the reference.
"""

from __future__ import annotations

SEED = 0


def is_language(text: str, code: str) -> bool:
    """Whether the text is most likely of this language (ISO 639-1)."""
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = SEED
    try:
        return detect(text) == code
    except LangDetectException:
        return True
