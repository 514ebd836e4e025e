"""Kubernetes quantities as numbers."""

from __future__ import annotations

import re
from fractions import Fraction

from rollout.errors import SpecError

_FORM = re.compile(r"(\d{1,30}(?:\.\d{0,30})?)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3})?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = "KMGTPE"


def exact_quantity(text: str) -> Fraction:
    """A Kubernetes quantity such as ``80Gi``, ``250m`` or ``24e9``, exactly. Raises SpecError."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise SpecError(f"{text!r} is not a quantity; write 80Gi")
    number, suffix = Fraction(found[1]), found[2] or ""
    if suffix.endswith("i"):
        return number * 1024 ** (1 + _BINARY.index(suffix[0]))
    if len(suffix) > 1:
        return number * Fraction(10) ** int(suffix[1:])
    return number * Fraction(10) ** _DECIMAL.get(suffix, 0)


def parse_quantity(text: str) -> int:
    """Bytes of a Kubernetes quantity such as ``80Gi`` or ``24e9``. Raises SpecError."""
    return int(exact_quantity(text))
