"""How completions are drawn from the policy."""

from pydantic import Field

from rollout_api.base import ApiModel, Name, Real, filled, many

MAX_NEW_TOKENS_DEFAULT = 512
"""Where neither the manifest nor the environment says more."""


class Sampling(ApiModel):
    """The distribution that completions are drawn from. Nothing is taken from a model's own files.

    In training, everything that cuts or bends the distribution after temperature is refused unless
    the engine returns the mask it sampled under.
    """

    temperature: Real = filled(1.0, ge=0, le=100)
    """Divides the logits; 0 is greedy. The learner recomputes logprobs at the same temperature."""
    max_new_tokens: int | None = Field(default=None, ge=1, le=16_777_216)
    """Longest completion in tokens. Unset: the environment's need, else 512."""
    min_new_tokens: int = filled(0, ge=0, le=16_777_216)
    """End tokens are not sampled before this many tokens."""
    top_p: Real = filled(1.0, gt=0, le=1)
    """Keep the likeliest tokens with this mass; 1 is off."""
    top_k: int = filled(0, ge=0, le=1_048_576)
    """Keep this many likeliest tokens; 0 is off."""
    min_p: Real = filled(0.0, ge=0, le=1)
    """Drop tokens below this share of the likeliest one; 0 is off."""
    presence_penalty: Real = filled(0.0, ge=-2, le=2)
    """Taken from the logit of tokens already there; 0 is off."""
    frequency_penalty: Real = filled(0.0, ge=-2, le=2)
    """Taken from a token's logit for each time it is there; 0 is off."""
    repetition_penalty: Real = filled(1.0, gt=0, le=10)
    """Divides the logits of tokens already there; 1 is off."""
    stop: tuple[Name, ...] = many(16)
    """Texts that end a completion, beside the renderer's end tokens. Not supported by this version: refused."""

    @property
    def new_tokens_max(self) -> int:
        """Most tokens of a completion."""
        return self.max_new_tokens or MAX_NEW_TOKENS_DEFAULT
