"""Worlds of the text game ``treasure-hunt``: rooms on a grid, a key in one of them, a locked chest in another. Pure.

A world is drawn from a number. Which split it belongs to depends on what it looks like, so that no two splits share a
world, whatever numbers they were drawn from.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from blake3 import blake3

from rollout.seeds import derive_seed

Place = tuple[int, int]
"""East and south of the first room; north and west are below 0."""

DIRECTIONS: dict[str, Place] = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
NAMES = (
    "hall",
    "kitchen",
    "library",
    "cellar",
    "attic",
    "garden",
    "stable",
    "pantry",
    "study",
    "chapel",
    "armoury",
    "tower",
    "gallery",
    "workshop",
    "laundry",
    "nursery",
    "observatory",
    "greenhouse",
    "vault",
    "courtyard",
    "bedroom",
    "ballroom",
    "dungeon",
    "balcony",
)
EXTRA_DOORS = 0.25
"""How likely two rooms side by side that the way through all rooms left apart have a door, too."""
PARTS = 10
SPLIT_PARTS = {"report": (0,), "selection": (1,), "train": tuple(range(2, PARTS))}
"""Of every ten worlds, by what they look like, one is for reports and one for selection."""
DRAWS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Rooms, doors, and where the hunt goes."""

    names: tuple[tuple[Place, str], ...]
    """Of the rooms, by place."""
    doors: frozenset[tuple[Place, str]]
    """Place and direction: both directions of each door."""
    start: Place
    """Where the hunt begins; the first room."""
    key: Place
    """Where the key lies."""
    chest: Place
    """Where the locked chest stands."""

    @property
    def rooms(self) -> dict[Place, str]:
        """Name of each room."""
        return dict(self.names)

    def exits(self, place: Place) -> tuple[str, ...]:
        """Where one can go from there, clockwise from north."""
        return tuple(way for way in DIRECTIONS if (place, way) in self.doors)

    @property
    def digest(self) -> bytes:
        """Of what the world looks like, from the start on: names do not matter."""
        told = (sorted(self.doors), self.start, self.key, self.chest)
        return blake3(repr(told).encode()).digest()

    def way(self, start: Place, end: Place) -> tuple[str, ...]:
        """A shortest way between two rooms."""
        ways: dict[Place, tuple[str, ...]] = {start: ()}
        waiting = deque([start])
        while end not in ways:
            here = waiting.popleft()
            for direction in self.exits(here):
                there = beside(here, direction)
                if there not in ways:
                    ways[there] = (*ways[here], direction)
                    waiting.append(there)
        return ways[end]

    @property
    def solution(self) -> tuple[str, ...]:
        """The commands of a shortest hunt."""
        there = [f"go {way}" for way in self.way(self.start, self.key)]
        on = [f"go {way}" for way in self.way(self.key, self.chest)]
        return (*there, "take key", *on, "open chest")


def beside(place: Place, direction: str) -> Place:
    """The place next to it."""
    east, south = DIRECTIONS[direction]
    return place[0] + east, place[1] + south


def draw_world(number: int, num_rooms: int) -> World:
    """The world of a number, with so many rooms (3 to 24)."""
    drawn = Random(number)
    places: list[Place] = [(0, 0)]
    doors: set[tuple[Place, str]] = set()
    while len(places) < num_rooms:
        here, way = drawn.choice(places), drawn.choice(list(DIRECTIONS))
        there = beside(here, way)
        if there not in places:
            places.append(there)
            doors |= _door(here, way)
    for here in places:
        for way in ("east", "south"):
            if beside(here, way) in places and drawn.random() < EXTRA_DOORS:
                doors |= _door(here, way)
    key, chest = drawn.sample(places[1:], 2)
    names = drawn.sample(NAMES, num_rooms)
    return World(
        names=tuple(zip(places, names, strict=True)),
        doors=frozenset(doors),
        start=(0, 0),
        key=key,
        chest=chest,
    )


def _door(here: Place, way: str) -> set[tuple[Place, str]]:
    ways = list(DIRECTIONS)
    back = ways[(ways.index(way) + 2) % len(ways)]
    return {(here, way), (beside(here, way), back)}


@lru_cache(maxsize=4096)
def number_at(split: str, position: int, num_rooms: int) -> int:
    """The number of the world at a position of a split."""
    for attempt in range(DRAWS_MAX):
        number = derive_seed(0, f"treasure-hunt/{split}", position, attempt)
        if draw_world(number, num_rooms).digest[0] % PARTS in SPLIT_PARTS[split]:
            return number
    raise AssertionError(f"no world of split {split} in {DRAWS_MAX} draws")
