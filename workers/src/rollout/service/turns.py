"""Whose call is next where several wait for one thing: tenants in turn by what they have had, then lines of a tenant.

Start-time fair queueing: of those who wait, the one that has had least goes next, and one that comes back has no claim to
what it left unused. Two who wait all the time differ by one call each at most, however many lines either has. What is
chosen decides when a call is made and never what it comes to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

COST_MIN = 1e-3
"""Seconds that any call counts for, so that calls that cost nothing take turns, too."""


@dataclass(slots=True)
class Shares:
    """What each name has had, in seconds; ``clock`` is what the one that was chosen last had had then."""

    had: dict[str, float] = field(default_factory=dict)
    clock: float = 0.0

    def choose(self, waiting: Iterable[str]) -> str:
        """Who has had least of those who wait (at least one); of equals the first that is named."""
        names = list(dict.fromkeys(waiting))
        had = {name: max(self.had.get(name, 0.0), self.clock) for name in names}
        chosen = min(names, key=had.__getitem__)
        self.clock = had[chosen]
        self.had = {name: one for name, one in self.had.items() if one > self.clock}
        return chosen

    def charge(self, name: str, cost: float) -> None:
        """The name has had ``cost`` seconds more."""
        self.had[name] = max(self.had.get(name, 0.0), self.clock) + max(cost, COST_MIN)


@dataclass(slots=True)
class Turns:
    """Turns of tenants, and in each tenant's of its lines."""

    tenants: Shares = field(default_factory=Shares)
    lines: dict[str, Shares] = field(default_factory=dict)

    def choose(self, waiting: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
        """The (tenant, line) that is next of those that wait; None: nobody waits."""
        by_tenant: dict[str, list[str]] = {}
        for tenant, line in waiting:
            by_tenant.setdefault(tenant, []).append(line)
        if not by_tenant:
            return None
        tenant = self.tenants.choose(by_tenant)
        return tenant, self.lines.setdefault(tenant, Shares()).choose(by_tenant[tenant])

    def charge(self, place: tuple[str, str], cost: float) -> None:
        """A call of a (tenant, line) held what is shared for ``cost`` seconds."""
        tenant, line = place
        self.tenants.charge(tenant, cost)
        self.lines.setdefault(tenant, Shares()).charge(line, cost)
