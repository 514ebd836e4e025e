"""At which level old and new policy are compared: token by token, or a completion as a whole.

| level           | log ratio of token t of sequence b             | known as                          |
| --------------- | ---------------------------------------------- | --------------------------------- |
| Token           | d_t = logprob_t - old_logprob_t                | PPO, GRPO                         |
| Sequence        | sg(mean_b(d)) + logprob_t - sg(logprob_t)      | GSPO, its token form              |
| SequenceProduct | sum_b(d)                                       | RLOO: the completion's own ratio  |

``sg`` stops the gradient. The token form has the value ``s = exp(mean_b(d))`` at every token and the
gradient ``s grad(logprob_t)``; summed over a sequence that is the gradient of ``s`` times its length,
as the weights of a sequence mean undo. A product leaves the usual clip range after few tokens.

Source: GSPO (arXiv 2507.18071) eq. 5 and 14, ``GSPO-token``; verl clamps its log at 10, here the
ratio is clamped as every other one. RLOO: Ahmadian et al. 2024 (arXiv 2402.14740); TRL 1.16.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from rollout.algorithms.sequences import mean_by_sequence, sum_by_sequence

RatioLevel = Literal["Token", "Sequence", "SequenceProduct"]


def level_log_ratios(
    level: RatioLevel,
    logprobs_C: Tensor,
    old_logprobs_C: Tensor,
    mask_C: Tensor,
    sequence_C: Tensor,
) -> Tensor:
    """Log ratios ``[C]`` of the table above; inputs finite and 0 under the mask, as is the result."""
    differences_C = logprobs_C - old_logprobs_C
    if level == "Token":
        return differences_C
    if level == "SequenceProduct":
        return sum_by_sequence(differences_C * mask_C, sequence_C)[sequence_C] * mask_C
    means_B = mean_by_sequence(differences_C.detach(), mask_C, sequence_C)
    return (means_B[sequence_C] + logprobs_C - logprobs_C.detach()) * mask_C
