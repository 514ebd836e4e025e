"""``rollout fmt``: one way to write a manifest. Comments, order of fields and flow style are kept.

Real numbers become decimal strings (what a cluster stores), indents two spaces, one newline at the
end. Knows which fields are real from the API models; leaves everything else as written.
"""

from __future__ import annotations

import io
import json
from collections.abc import MutableMapping
from typing import Any, get_args

from pydantic import BaseModel

from rollout.errors import SpecError
from rollout_api.base import ApiModel, IsReal

LINE_WIDTH = 110


def format_manifest(name: str, text: str) -> str:
    """The normal form of a manifest; formatting it again changes nothing. Raises SpecError."""
    return _format_toml(name, text) if name.endswith(".toml") else _format_yaml(name, text)


def _format_yaml(name: str, text: str) -> str:
    from rollout.runs.yaml_reading import load_all, round_trip

    yaml = round_trip()
    yaml.preserve_quotes = True
    yaml.width = LINE_WIDTH
    yaml.indent(mapping=2, sequence=2, offset=0)
    documents = load_all(yaml, name, text)
    if not documents:
        raise SpecError(f"{name}: no manifest in it; expected at least one document")
    for document in documents:
        _quote_document(document)
    out = io.StringIO()
    yaml.dump_all(documents, out) if len(documents) > 1 else yaml.dump(documents[0], out)
    return out.getvalue().rstrip("\n") + "\n"


def _format_toml(name: str, text: str) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
    except (TOMLKitError, ValueError, RecursionError) as error:
        raise SpecError(f"{name}: not valid TOML: {error}") from error
    _quote_document(document)
    return tomlkit.dumps(document).rstrip("\n") + "\n"


def _quote_document(document: Any) -> None:
    from rollout_api.v1alpha1.objects.kinds import model_of
    from rollout_api.v1alpha1.run import RolloutRunSpec

    if not isinstance(document, MutableMapping):
        return
    if "schema_version" in document and "spec" not in document:
        _quote(document, RolloutRunSpec)
        return
    try:
        model = model_of(str(document.get("kind", "RolloutRun")))
    except ValueError:
        return
    _quote(document, model)


def _quote(node: Any, model: type[BaseModel]) -> None:
    if not isinstance(node, MutableMapping):
        return
    fields = {info.alias or key: info for key, info in model.model_fields.items()}
    for key in list(node):
        info = fields.get(key)
        if info is None:
            continue
        value = node[key]
        if _is_real(info.annotation, info.metadata) and _is_number(value):
            node[key] = decimal_string(float(value))
        elif inner := _model_in(info.annotation):
            for item in value if isinstance(value, list) else [value]:
                _quote(item, inner)


def decimal_string(value: float) -> str:
    """The shortest decimal string that reads back as the same float."""
    return json.dumps(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_real(annotation: Any, metadata: Any) -> bool:
    if any(item is IsReal or isinstance(item, IsReal) for item in metadata):
        return True
    inner = getattr(annotation, "__metadata__", ())
    return any(isinstance(item, IsReal) for item in inner) or any(
        _is_real(part, ()) for part in get_args(annotation) if part is not type(None)
    )


def _model_in(annotation: Any) -> type[ApiModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation
    for part in get_args(annotation):
        if found := _model_in(part):
            return found
    return None
