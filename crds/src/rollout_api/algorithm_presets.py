"""The named algorithms of the GRPO family: what each of them sets, as its source gives it.

Names to write in ``spec.preset``, alone or joined to a model's: ``qwen2.5-0.5b@v1+dapo@v1``. Every one
says all that makes the algorithm, so that a later version of the defaults changes none of them. Numbers
of a run (prompts, group size, learning rate) stay the user's, but for a group of one. A released preset
is never edited: a change is a new version.
"""

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]


def _grpo(*, train: Document | None = None, **settings: Any) -> Document:
    plain: Document = {
        "surrogate": {"clipped": {}},
        "ratio": "Token",
        "clipLow": "0.2",
        "clipHigh": "0.2",
        "aggregation": "TokenMean",
        "advantageBaseline": "GroupMean",
        "advantageScale": "Group",
        "klCoefficient": "0",
        "klEstimator": "K3",
        "klPlacement": "Loss",
    }
    return {"train": {"algorithm": {"grpo": plain | settings}, **(train or {})}}


ALGORITHM_PRESETS: Mapping[str, Document] = {
    # DeepSeekMath (arXiv 2402.03300)
    "grpo@v1": _grpo(aggregation="SequenceMean", klCoefficient="0.04"),
    # DAPO (arXiv 2503.14476): clip-higher, token mean, dynamic sampling, soft penalty for length
    "dapo@v1": _grpo(
        clipHigh="0.28",
        train={"dynamicSampling": {"generationWavesMax": 3}, "overlongPenalty": {"penalty": "1.0"}},
    ),
    # Dr. GRPO (arXiv 2503.20783)
    "dr-grpo@v1": _grpo(aggregation="FixedLength", advantageScale="None"),
    # GSPO (arXiv 2507.18071) section 5.1
    "gspo@v1": _grpo(
        ratio="Sequence", aggregation="SequenceMean", clipLow="0.0003", clipHigh="0.0004"
    ),
    # CISPO (arXiv 2506.13585) with the bound of ScaleRL (arXiv 2510.13786)
    "cispo@v1": _grpo(surrogate={"cispo": {"absolute": {"ratioMax": "5.0"}}}),
    # SAPO (arXiv 2511.20347)
    "sapo@v1": _grpo(
        surrogate={"sapo": {"temperaturePositive": "1.0", "temperatureNegative": "1.05"}},
        aggregation="SequenceMean",
    ),
    # GMPO (arXiv 2507.20673)
    "gmpo@v1": _grpo(
        surrogate={"gmpo": {"logClipLow": "0.4", "logClipHigh": "0.4"}}, aggregation="SequenceMean"
    ),
    # VESPO (arXiv 2602.10693)
    "vespo@v1": _grpo(
        surrogate={
            "vespo": {
                "kPositive": "2.0",
                "lambdaPositive": "3.0",
                "kNegative": "3.0",
                "lambdaNegative": "2.0",
            }
        }
    ),
    # Divergence PPO (arXiv 2602.04879) as in prime-rl, whose ratio is to the actor's own logprobs
    "dppo@v1": _grpo(
        surrogate={"dppo": {"maskLow": "0.2", "maskHigh": "0.2", "driftCoefficient": "0.001"}},
        advantageScale="None",
        train={"oldLogprobs": "Actor"},
    ),
    # RLOO (arXiv 2402.14740) with TRL's KL
    "rloo@v1": _grpo(
        ratio="SequenceProduct",
        aggregation="SequenceMean",
        advantageBaseline="LeaveOneOut",
        advantageScale="None",
        klCoefficient="0.05",
        klEstimator="K1",
        klPlacement="Reward",
    ),
    # REINFORCE++ (arXiv 2501.03262), one completion per prompt, with OpenRLHF's KL
    "reinforce-plus-plus@v1": _grpo(
        groupSize=1,
        advantageBaseline="None",
        advantageScale="Whiten",
        klCoefficient="0.01",
        klEstimator="K1",
        klPlacement="TokenReward",
    ),
    # Its form with a baseline of the group and the KL in the loss
    "reinforce-plus-plus-baseline@v1": _grpo(
        advantageScale="Whiten", klCoefficient="0.01", klEstimator="K2"
    ),
}
