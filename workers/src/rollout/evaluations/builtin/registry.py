"""The suites that rollout ships, by name; ``rollout_api.checks.catalog`` lists the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rollout.evaluations.builtin.gsm8k import (
    build_gsm8k,
    build_gsm8k_5shot,
    build_gsm8k_cot_zeroshot,
)
from rollout.evaluations.builtin.humaneval import build_humaneval
from rollout.evaluations.builtin.ifeval import build_ifeval
from rollout.evaluations.builtin.mmlu import (
    build_mmlu,
    build_mmlu_continuation,
    build_mmlu_generative,
)
from rollout.evaluations.builtin.musique import build_musique
from rollout.evaluations.builtin.own_problems import build_arithmetic, build_treasure_hunt
from rollout.evaluations.suites import Context, Suite

BUILTINS: Mapping[str, Callable[[str, Mapping[str, str], Context], Suite]] = {
    "arithmetic": build_arithmetic,
    "gsm8k": build_gsm8k,
    "gsm8k-5shot": build_gsm8k_5shot,
    "gsm8k-cot-zeroshot": build_gsm8k_cot_zeroshot,
    "humaneval": build_humaneval,
    "ifeval": build_ifeval,
    "mmlu": build_mmlu,
    "mmlu-continuation": build_mmlu_continuation,
    "mmlu-generative": build_mmlu_generative,
    "musique": build_musique,
    "treasure-hunt": build_treasure_hunt,
}
"""Suites by name."""
