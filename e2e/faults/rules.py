"""Which calls meet which fault: a rule counts the calls it matches and acts on some of them."""

import threading
from collections import deque
from dataclasses import dataclass, field
from http import HTTPStatus

from faults.calls import Call
from faults.kinds import Fault

CALLS_KEPT_MAX = 200_000
ANY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A fault for the `first`-th matching call and the following ones, `times` in all (None: for ever).

    An empty set matches everything; `prefix` begins the object's name, `client` is part of the User-Agent.
    """

    fault: Fault
    verbs: frozenset[str] | set[str] = ANY
    resources: frozenset[str] | set[str] = ANY
    subresources: frozenset[str] | set[str] | None = None
    names: frozenset[str] | set[str] = ANY
    prefix: str = ""
    client: str = ""
    first: int = 1
    times: int | None = 1

    def matches(self, call: Call) -> bool:
        """Whether the rule counts this call."""
        return (
            (not self.verbs or call.verb in self.verbs)
            and (not self.resources or call.resource in self.resources)
            and (not self.names or call.name in self.names)
            and call.name.startswith(self.prefix)
            and (self.subresources is None or call.subresource in self.subresources)
            and self.client in call.client
        )

    def hits(self, number: int) -> bool:
        """Whether the rule acts on its `number`-th call (from 1)."""
        return number >= self.first and (self.times is None or number < self.first + self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A call that has ended: the fault it met, if any; `status` 0 when it was cut; monotonic seconds."""

    call: Call
    fault: str = ""
    status: int = 0
    arrived: float = 0.0
    ended: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Whether the client saw a success."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


@dataclass(slots=True)
class _Counted:
    rule: Rule
    matched: int = 0


@dataclass(slots=True)
class Book:
    """Rules in force and calls seen; safe to use from the test's thread and the proxy's."""

    _rules: list[_Counted] = field(default_factory=list)
    _records: deque[Record] = field(default_factory=lambda: deque(maxlen=CALLS_KEPT_MAX))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def inject(self, rule: Rule) -> None:
        """Put a rule in force; it counts from here."""
        with self._lock:
            self._rules.append(_Counted(rule))

    def clear(self) -> None:
        """Drop every rule and every record."""
        with self._lock:
            self._rules.clear()
            self._records.clear()

    def decide(self, call: Call) -> Fault | None:
        """Count the call for every rule; the first rule that acts on it wins."""
        with self._lock:
            hit = [counted for counted in self._rules if _count(counted, call)]
        return hit[0].rule.fault if hit else None

    def record(self, record: Record) -> None:
        """Keep what came of a call."""
        with self._lock:
            self._records.append(record)

    def records(self) -> list[Record]:
        """Every call that has ended, oldest first."""
        with self._lock:
            return list(self._records)

    def matched(self, rule: Rule) -> int:
        """How many calls the rule has counted."""
        with self._lock:
            return next((one.matched for one in self._rules if one.rule is rule), 0)


def _count(counted: _Counted, call: Call) -> bool:
    if not counted.rule.matches(call):
        return False
    counted.matched += 1
    return counted.rule.hits(counted.matched)
