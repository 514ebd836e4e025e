"""What the list shows of one run or model."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run of the list, or a model of a service (``is_model``). ``said`` is why it cannot be read; then the rest is empty.

    ``counted`` False: it has taken ``step`` steps or more.
    """

    name: str
    state: str
    created_at: float | None = None
    algorithm: str = ""
    model: str = ""
    step: int | None = None
    max_steps: int | None = None
    reward: float | None = None
    said: str = ""
    is_model: bool = False
    counted: bool = True

    @property
    def path(self) -> str:
        """The address of its page."""
        return f"/{'models' if self.is_model else 'runs'}/{quote(self.name, safe='')}"
