"""For fakes of the coordinator: a call becomes the method that its route is named after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RoutedCalls:
    """A worker's client of a fake. ``called_by`` of the fake, where it has one, hears who calls."""

    coordinator: Any
    incarnation: int = 0

    def as_worker(self, worker: str, incarnation: int = 0) -> RoutedCalls:
        return RoutedCalls(self.coordinator, incarnation)

    def call(self, route: Any, ask: Any) -> Any:
        if hasattr(self.coordinator, "called_by"):
            self.coordinator.called_by(self.incarnation)
        name = route.path.rpartition("/")[2].replace("-", "_")
        return getattr(self.coordinator, name)(ask)
