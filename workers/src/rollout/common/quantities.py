"""Kubernetes quantities as numbers."""

from __future__ import annotations

from rollout.errors import SpecError


def parse_quantity(text: str) -> int:
    """Bytes of a Kubernetes quantity such as ``80Gi`` or ``24e9``. Raises SpecError."""
    factors = {
        "Ki": 2**10,
        "Mi": 2**20,
        "Gi": 2**30,
        "Ti": 2**40,
        "k": 1e3,
        "M": 1e6,
        "G": 1e9,
        "T": 1e12,
    }
    for suffix, factor in factors.items():
        if text.endswith(suffix):
            return int(float(text.removesuffix(suffix)) * factor)
    try:
        return int(float(text))
    except ValueError as error:
        raise SpecError(f"{text!r} is not a quantity; write 80Gi") from error
