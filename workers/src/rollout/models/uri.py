"""Model URIs, parsed: ``hf://owner/name``, ``file:///folder``, ``s3://bucket/prefix``, ``rollout://name?hidden=512``.

Knows only the form. Whether the model exists is ``resolve``'s question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from rollout.errors import SpecError

SCHEMES = ("hf", "file", "s3", "gs", "rollout")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUri:
    """``name`` is ``owner/name`` (hf), a folder (file), a bucket's prefix (s3, gs) or a built-in model's name (rollout)."""

    scheme: str
    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The canonical form: parameters sorted by name."""
        query = "&".join(f"{key}={self.parameters[key]}" for key in sorted(self.parameters))
        return f"{self.scheme}://{self.name}" + (f"?{query}" if query else "")


def parse_model_uri(uri: str) -> ModelUri:
    """Parse one URI. Raises SpecError for another scheme, an empty name or a repeated parameter."""
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        raise SpecError(
            f"model uri {uri!r}: expected one of {', '.join(f'{s}://' for s in SCHEMES)}; "
            f"a local folder is written file:///path/to/folder"
        )
    name = (parts.netloc + parts.path).rstrip("/")
    if not name:
        raise SpecError(f"model uri {uri!r} names no model after {parts.scheme}://")
    return ModelUri(
        scheme=parts.scheme, name=name, parameters=_parse_parameters(uri, parts.scheme, parts.query)
    )


def _parse_parameters(uri: str, scheme: str, query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    if pairs and scheme != "rollout":
        raise SpecError(f"model uri {uri!r}: only rollout:// models take parameters after '?'")
    parameters = dict(pairs)
    if len(parameters) != len(pairs):
        raise SpecError(f"model uri {uri!r} gives a parameter twice")
    return parameters
