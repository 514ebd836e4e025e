"""What has been counted of the models that were looked at last, kept in memory and gone on with at each look.

A small book is counted at once; of a large one a page shows how far it is, and the page's own stream of events counts on.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rollout.service.reading.finding import OpenedModel
from rollout.service.reading.folding import ModelFold
from rollout.service.reading.standing import BookStanding, read_standing

FOLDS_MAX = 64
"""Models of which the counts are kept; more than a page of the list has."""
LOOK_SECONDS = 0.08
"""A page counts for so long before it is made."""
SLICE_SECONDS = 0.04
"""Nobody else sees a model for so long while it is counted beside its page."""
PAUSE_SECONDS = 0.005


@dataclass(slots=True, kw_only=True)
class _Kept:
    fold: ModelFold
    mutex: threading.Lock = field(default_factory=threading.Lock)


class ModelCounts:
    """Owns the folds. Any thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._mutex, self._counting = threading.Lock(), threading.Lock()

    @contextmanager
    def look(
        self, opened: OpenedModel, seconds: float = LOOK_SECONDS
    ) -> Iterator[tuple[BookStanding, ModelFold]]:
        """Where a model stands and what is counted of it, after counting for about so long. Raises LedgerError."""
        kept = self._find(opened)
        standing = read_standing(opened.book, opened.model)
        with kept.mutex:
            if not _fits(kept.fold, opened):
                kept.fold = ModelFold(chain=opened.model.chain)
            kept.fold.go_on(opened.book, opened.model.id, standing, seconds)
            yield standing, kept.fold

    def count_on(self, opened: OpenedModel, seconds: float) -> tuple[BookStanding, int, bool]:
        """Count for about so long, letting others look in between: where the model stands, how far it is counted, whether wholly.

        One thread counts so at a time, whatever the model: for another one it is a look.
        """
        counts = self._counting.acquire(blocking=False)
        try:
            return self._count(opened, seconds if counts else 0.0)
        finally:
            if counts:
                self._counting.release()

    def _count(self, opened: OpenedModel, seconds: float) -> tuple[BookStanding, int, bool]:
        ends_at = time.monotonic() + seconds
        while True:
            with self.look(opened, min(seconds, SLICE_SECONDS)) as (standing, fold):
                found = (standing, fold.done, fold.is_whole(standing))
            if found[2] or time.monotonic() >= ends_at:
                return found
            time.sleep(PAUSE_SECONDS)

    def _find(self, opened: OpenedModel) -> _Kept:
        key = (str(opened.folder), opened.model.id)
        with self._mutex:
            kept = self._kept.setdefault(key, _Kept(fold=ModelFold(chain=opened.model.chain)))
            self._kept.move_to_end(key)
            while len(self._kept) > FOLDS_MAX:
                self._kept.popitem(last=False)
            return kept


def _fits(fold: ModelFold, opened: OpenedModel) -> bool:
    """Whether the book is still the one that was counted: another has another chain value there."""
    if not fold.done:
        return not fold.damage  # what could not be read may have been restored
    return opened.book.chain_at(opened.model.id, fold.done) == fold.chain and not fold.damage
