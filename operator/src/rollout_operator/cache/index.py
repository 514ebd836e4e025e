"""Objects by what is looked up of them: the reasons they name, the objects they name, whether they are at work.

Kept by the store as objects come, change and go, so that no question walks over all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from rollout_operator.cache.objects import Stored
from rollout_operator.controller.queue import Key

Name = TypeVar("Name", str, Key)


class ObjectIndex:
    """Where each object stands. Keys come back in the order in which they came to stand there.

    Of kinds beside ``works`` (empty: of none) only what they name is kept: their reasons are no run's.
    """

    def __init__(self, works: str = "") -> None:
        self._works = works
        self._by_reason: dict[str, dict[Key, None]] = {}
        self._by_reference: dict[Key, dict[Key, None]] = {}
        self._ready: Counter[str] = Counter()
        self.num_at_work = 0

    def replace(self, before: Stored | None, after: Stored | None) -> None:
        """An object has come, changed or gone."""
        if before is not None:
            self._remove(before)
        if after is not None:
            self._add(after)

    def waiting(self, reasons: Iterable[str], namespace: str) -> list[Key]:
        """Objects whose conditions name one of the reasons; no namespace means all of them."""
        found = {key: None for reason in reasons for key in self._by_reason.get(reason, ())}
        return [key for key in found if namespace in {"", key.namespace}]

    def referrers(self, key: Key) -> list[Key]:
        """Objects whose spec names this object, whether or not it is there."""
        return list(self._by_reference.get(key, ()))

    def by_ready(self) -> Mapping[str, int]:
        """How many objects have each reason of Ready."""
        return +self._ready

    def _add(self, stored: Stored) -> None:
        facts, key = stored.facts, stored.key
        for named in facts.references:
            self._by_reference.setdefault(named, {})[key] = None
        if self._works not in {"", key.kind}:
            return
        for reason in facts.reasons:
            self._by_reason.setdefault(reason, {})[key] = None
        self._ready[facts.ready] += 1
        self.num_at_work += facts.at_work

    def _remove(self, stored: Stored) -> None:
        facts, key = stored.facts, stored.key
        for named in facts.references:
            _take(self._by_reference, named, key)
        if self._works not in {"", key.kind}:
            return
        for reason in facts.reasons:
            _take(self._by_reason, reason, key)
        self._ready[facts.ready] -= 1
        self.num_at_work -= facts.at_work


def _take(index: dict[Name, dict[Key, None]], name: Name, key: Key) -> None:
    """Take a key away; a name that nobody stands under any more is forgotten."""
    standing = index[name]
    del standing[key]
    if not standing:
        del index[name]
