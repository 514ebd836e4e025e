"""What holds of an algorithm beside its settings: whoever needs one of these facts reads it here and asks for no name.

Each algorithm's model carries its own as ``traits``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The facts of one algorithm. Functions take its settings."""

    row: Literal["none", "answer", "pair", "label"] = "none"
    """What a row of training data holds beside its prompt; ``none``: the policy answers prompts itself (online)."""
    rewards: bool = False
    """Whether it learns from rewards, so that a run must name one."""
    margins: bool = False
    """Whether it reads the wanted margin of a pair."""
    scores: bool = False
    """Whether it trains a reward model, which gives a number and generates nothing."""
    reference: Literal["Never", "Always", "KlCoefficient"] = "Never"
    """Whether it compares with a frozen reference; ``KlCoefficient``: where that setting is above 0."""
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Models of its own by role, and where its settings name them."""
    learning_rate: str = "1e-06"
    """Peak where the manifest names none."""
    tiny_learning_rate: str = "0.0003"
    """The same for the models that rollout builds itself: rates for billions of parameters teach them nothing."""
    num_samples: Callable[[Any], int] = lambda _: 1
    """Completions sampled per prompt; 1 where rows are learned from."""
    samples_min: Callable[[Any], int | None] = lambda _: None
    """Samples of a group that must survive infrastructure failures; None: a group is whole or excluded."""
    branches: bool = False
    """Whether it learns from all rows of an episode that has several; else such an episode is refused by name."""
    pools_rewards: Callable[[Any], bool] = lambda _: False
    """Whether advantages do not come from siblings: with a critic, or without a baseline of the group."""

    @property
    def is_online(self) -> bool:
        """Whether it samples from the policy it trains."""
        return self.row == "none"
