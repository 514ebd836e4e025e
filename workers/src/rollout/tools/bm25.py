"""BM25 over a few documents: the same ranking on every machine, ties by place.

Robertson and Zaragoza 2009, with the idf of Lucene: ``ln(1 + (N - df + 0.5) / (df + 0.5))``. Words are runs of two
or more letters, digits or underscores, in lower case, without English stop words. For a corpus that fits in memory.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

K1, B = 1.5, 0.75
_WORD = re.compile(r"(?u)\b\w\w+\b")
STOP_WORDS = frozenset(
    [
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "but",
        "by",
        "for",
        "if",
        "in",
        "into",
        "is",
        "it",
        "no",
        "not",
        "of",
        "on",
        "or",
        "such",
        "that",
        "the",
        "their",
        "then",
        "there",
        "these",
        "they",
        "this",
        "to",
        "was",
        "will",
        "with",
    ]
)


def words(text: str) -> list[str]:
    """What is compared of a text."""
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


class Bm25:
    """An index over ``documents``."""

    def __init__(self, documents: Sequence[str]) -> None:
        counts = [Counter(words(document)) for document in documents]
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        frequencies = Counter(word for count in counts for word in count)
        self._num_documents = len(documents)
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for place, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            scale = K1 * (1 - B + B * length / mean)
            for word, number in count.items():
                rare = len(documents) - frequencies[word] + 0.5
                idf = math.log1p(rare / (frequencies[word] + 0.5))
                score = idf * number / (number + scale)
                self._postings.setdefault(word, []).append((place, score))

    def scores(self, query: str) -> list[float]:
        """One score a document; a word that stands twice in the query counts twice."""
        scores = [0.0] * self._num_documents
        for word in words(query):
            for place, score in self._postings.get(word, ()):
                scores[place] += score
        return scores

    def best(self, query: str, num: int) -> list[int]:
        """Places of the best documents that have a word of the query, best first, ties by place."""
        scores = self.scores(query)
        found = [place for place, score in enumerate(scores) if score > 0]
        return sorted(found, key=lambda place: (-scores[place], place))[:num]
