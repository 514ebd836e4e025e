"""Room in bytes that all keys share: for each a part, and for all together. Plain counters; whoever takes gives back.

Half of either is kept from calls that wait for one that has not come: what fills the rest is computed in its turn and goes,
so that the call which is missing finds room, and no order of arrivals fills a queue for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rollout.service.refusals import CallRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomBounds:
    """Bytes of all keys together, and of one."""

    all_bytes: int
    key_bytes: int


QUEUE_BOUNDS = RoomBounds(all_bytes=4 << 30, key_bytes=1 << 30)
"""Of calls that wait for their answers, on the disk."""
BODY_BOUNDS = RoomBounds(all_bytes=512 << 20, key_bytes=256 << 20)
"""Of bodies of requests that are in memory, and once more of large answers."""


@dataclass(slots=True)
class SharedRoom:
    """``what`` is held, in words. ``taken`` and ``ahead`` are bytes by owner."""

    bounds: RoomBounds
    what: str
    taken: dict[str, int] = field(default_factory=dict)
    ahead: dict[str, int] = field(default_factory=dict)

    def take(self, owner: str, size: int, *, ahead: bool = False) -> None:
        """Hold ``size`` bytes more. Raises CallRefused: 429 where it is full, 413 where it could never be had."""
        if size > min(self.bounds.key_bytes, self.bounds.all_bytes):
            raise CallRefused(
                f"{size} bytes: of {self.what} a key may have {self.bounds.key_bytes}; send fewer sequences in a call",
                413,
            )
        self._check(owner, size, self.taken, 1)
        if ahead:
            self._check(owner, size, self.ahead, 2)
            _add(self.ahead, owner, size)
        _add(self.taken, owner, size)

    def hold(self, owner: str, size: int) -> None:
        """Hold what is there already, whatever the bounds say."""
        _add(self.taken, owner, size)

    def give(self, owner: str, size: int, *, ahead: bool = False) -> None:
        """Give back what was taken."""
        _add(self.taken, owner, -size)
        if ahead:
            _add(self.ahead, owner, -size)

    def _check(self, owner: str, size: int, held: dict[str, int], part: int) -> None:
        key_bytes, all_bytes = self.bounds.key_bytes // part, self.bounds.all_bytes // part
        if held.get(owner, 0) + size > key_bytes:
            raise CallRefused(
                f"{self.what}: {held.get(owner, 0)} bytes of this key, of at most {key_bytes}; try again",
                429,
            )
        if sum(held.values()) + size > all_bytes:
            raise CallRefused(
                f"{self.what}: {sum(held.values())} bytes of all keys, of at most {all_bytes}; try again",
                429,
            )


def _add(held: dict[str, int], owner: str, size: int) -> None:
    held[owner] = held.get(owner, 0) + size
    if not held[owner]:
        del held[owner]
