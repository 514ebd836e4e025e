"""How large a spec may be. What a cluster keeps of every run, and renders into every pod, has a bound that is its own.

etcd takes objects of 1.5 MB; a few hundred of those would fill the operator's memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rollout_api.checks.facts import Facts
from rollout_api.presets import PRESETS, fill, preset_names
from rollout_api.problems import Problem
from rollout_api.v1alpha1.run import RolloutRunSpec

SPEC_BYTES_MAX = 64 * 1024
"""Of a spec as JSON with everything that defaults and presets fill in."""
SURELY_SMALL_BYTES = 8 * 1024
"""What is filled in cannot take a spec of this size to the bound; it need not be filled in to know."""


def size_bytes(value: Any) -> int:
    """Bytes of a value as JSON without spaces."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return len(text.encode(errors="surrogatepass"))


def find_excess(spec: Mapping[str, Any]) -> Problem | None:
    """What is too large about a spec that is written out in full."""
    size = size_bytes(spec)
    if size <= SPEC_BYTES_MAX:
        return None
    sizes = {name: size_bytes(value) for name, value in spec.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    return Problem(
        field=f"spec.{largest}",
        reason="TooLarge",
        message=f"the spec has {size:,} bytes with its defaults, {sizes[largest]:,} of them here; "
        f"a cluster takes {SPEC_BYTES_MAX:,}",
        fix="put long values into a ConfigMap, a Secret or the code, and name them here",
    )


def specs_have_a_bounded_size(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """The bound holds for what a cluster keeps; a file on this machine may be as long as it likes."""
    if facts.platform == "local":
        return
    written = spec.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    if size_bytes(written) <= SURELY_SMALL_BYTES:
        return
    if spec.preset and any(name not in PRESETS for name in preset_names(spec.preset)):
        return  # another rule's to tell
    full = fill(spec, engine="vllm").model_dump(mode="json", exclude_none=True)
    if (problem := find_excess(full)) is not None:
        yield problem


RULES = (specs_have_a_bounded_size,)
