"""How much the webhook takes on at once, and what it parses: bounds that keep a flood within its memory.

The API server sends small reviews, many at once after an outage, from few addresses; anybody who reaches
the port may send anything. One address never has more than half of what there is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MIB = 1024 * 1024
REVIEW_BYTES_MAX = 3 * MIB
"""A new and an old object of the 1.5 MiB that etcd takes; the API server takes no larger request itself."""
REVIEWS_MAX = 512
"""An API server has 200 changes under way at most, all of them from one address."""
BYTES_MAX = 32 * MIB
"""Of bodies that are being read or wait to be answered, as their senders declare them."""
SHARE = 0.5
NODES_MAX = 200_000
"""Values in a body, by a count of brackets and commas that holds for strings, too: about 20 MB once parsed."""
NESTING_MAX = 64
"""Objects of ours nest 20 deep with the fields that the API server manages."""


@dataclass(slots=True, kw_only=True)
class Crowd:
    """Reviews that are under way, in all and of each address."""

    reviews_max: int = REVIEWS_MAX
    bytes_max: int = BYTES_MAX
    _num_reviews: Counter[str] = field(default_factory=Counter)
    _num_bytes: Counter[str] = field(default_factory=Counter)

    def has_room(self, peer: str, size_bytes: int) -> bool:
        """Whether one more review of this size may come in from there."""
        reviews, sizes = self._num_reviews, self._num_bytes
        return (
            reviews.total() < self.reviews_max
            and reviews[peer] < self.reviews_max * SHARE
            and sizes.total() + size_bytes <= self.bytes_max
            and sizes[peer] + size_bytes <= self.bytes_max * SHARE
        )

    @contextmanager
    def inside(self, peer: str, size_bytes: int) -> Iterator[None]:
        """One review, from the first byte of its body to its answer."""
        self._count(peer, 1, size_bytes)
        try:
            yield
        finally:
            self._count(peer, -1, -size_bytes)

    def _count(self, peer: str, reviews: int, size_bytes: int) -> None:
        self._num_reviews[peer] += reviews
        self._num_bytes[peer] += size_bytes
        if not self._num_reviews[peer]:
            del self._num_reviews[peer], self._num_bytes[peer]


def parse_review(body: bytes) -> dict[str, Any]:
    """An AdmissionReview. Raises ValueError for what is none, or is larger or deeper than any."""
    if (nodes := body.count(b",") + body.count(b"{") + body.count(b"[")) > NODES_MAX:
        raise ValueError(f"{nodes} values in a review; {NODES_MAX} are taken")
    try:
        review = json.loads(body)
    except RecursionError as error:
        raise ValueError(f"a review nests deeper than {NESTING_MAX}") from error
    request = review.get("request") if isinstance(review, dict) else None
    if request is None or not isinstance(request, dict):
        raise ValueError("expected an AdmissionReview with a request")
    for name in ("object", "oldObject"):
        found = request.get(name)
        if found is not None and not _is_object(found):
            raise ValueError(f"request.{name}: expected an object with metadata")
    if _is_deep(review):
        raise ValueError(f"a review nests deeper than {NESTING_MAX}")
    return review


def _is_object(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("metadata", {}), dict)


def _is_deep(document: Any) -> bool:
    level = [document]
    for _ in range(NESTING_MAX):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
