"""The names of what rollout ships, so that a misspelt one is refused before anything starts.

The data plane registers the same names; an architecture test holds the two lists together.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ENVIRONMENTS = frozenset({"single-turn", "arithmetic", "code", "musique-search", "treasure-hunt"})
REWARDS = frozenset(
    {"code-tests", "environment", "exact-match", "judge", "math-verify", "length", "format"}
)
SUITE_METRICS = {
    "arithmetic": (),
    "gsm8k": (),
    "gsm8k-5shot": ("strict", "flexible", "numeric"),
    "gsm8k-cot-zeroshot": ("strict", "flexible", "numeric"),
    "humaneval": ("share",),
    "ifeval": ("prompt_strict", "prompt_loose", "inst_strict", "inst_loose"),
    "mmlu": ("acc", "acc_norm", "acc_bytes"),
    "mmlu-continuation": ("acc", "acc_norm", "acc_bytes"),
    "mmlu-generative": ("exact",),
    "musique": ("em", "f1"),
    "treasure-hunt": (),
}
"""What each suite measures beside accuracy and pass@k, as far as a gate may hold it."""
SUITES = frozenset(SUITE_METRICS)
LIKELIHOOD_SUITES = frozenset({"mmlu", "mmlu-continuation"})
"""Those that have given answers scored: nothing is sampled, and the engine must score given tokens."""
ENVIRONMENTS_WITH_DATA = frozenset({"arithmetic", "treasure-hunt"})
TINY_MODELS = frozenset({"tiny-qwen2", "tiny-llama", "tiny-qwen3-moe", "tiny-adder", "tiny-agent"})
MODEL_SCHEMES = frozenset({"hf", "file", "rollout", "s3", "gs"})


def suggest(name: str, known: Iterable[str]) -> str:
    """How to mend an unknown name: the nearest known one, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"there are: {', '.join(names)}"
