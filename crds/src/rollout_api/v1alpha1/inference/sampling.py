"""How completions are drawn from the policy."""

from typing import Annotated

from pydantic import Field, StringConstraints

from rollout_api.base import LIST_TYPE, ApiModel, Real, filled, many, unique

StopText = Annotated[str, StringConstraints(min_length=1, max_length=256)]
"""A text that ends a completion: any characters, line ends included."""
TokenId = Annotated[int, Field(ge=0, le=16_777_215)]
"""A token of a vocabulary."""

MAX_NEW_TOKENS_DEFAULT = 512
"""Where neither the manifest nor the environment says more."""


class Sampling(ApiModel):
    """The distribution that completions are drawn from. Nothing is taken from a model's own files.

    In training, everything that cuts or bends the distribution after temperature is refused unless
    the engine returns the mask it sampled under; evaluations take it.
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
    stop: Annotated[tuple[StopText, ...], unique(str)] = many(16, extra={LIST_TYPE: "set"})
    """Texts that end a completion with the token that completes them, however tokens divide them. A text in the prompt
    ends nothing, nor does one that is whole within the first `minNewTokens`."""
    stop_token_ids: Annotated[tuple[TokenId, ...], unique(int)] = many(64, extra={LIST_TYPE: "set"})
    """Tokens that end a completion, beside the template's end tokens. Not sampled before `minNewTokens`."""
    include_stop_text: bool = filled(default=False)
    """Whether what ended a completion by `stop` or `stopTokenIds` stays in the text that rewards and environments see.
    The learner trains on its tokens in any case."""

    def end_token_ids(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Every token that ends a completion; ``own`` are the renderer's."""
        return (*own, *(token for token in self.stop_token_ids if token not in own))

    @property
    def new_tokens_max(self) -> int:
        """Most tokens of a completion."""
        return self.max_new_tokens or MAX_NEW_TOKENS_DEFAULT
