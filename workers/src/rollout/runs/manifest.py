"""Reads manifest files: YAML (several documents) and TOML, from a path or from standard input.

Keeps the line of every field, so that a problem can be printed as ``file:line``. Refuses duplicate
keys, aliases, broken syntax and documents that are not mappings, each with its place. Knows nothing of what
the fields mean: that is ``rollout_api``.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.errors import SpecError

FILE_BYTES_MAX = 1024 * 1024
MADE = "<manifest>"
"""Where a manifest stands that a program has made."""
API_VERSION = "rollout.dev/v1alpha1"
FieldPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One manifest as written. ``lines`` maps a field's path to its 1-based line."""

    source: str
    data: dict[str, Any]
    lines: Mapping[FieldPath, int]

    def line(self, field: str) -> int:
        """The line of a dotted field path such as ``spec.rewards[0].weight``; its nearest parent's if absent."""
        path = parse_path(field)
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def parse_path(field: str) -> FieldPath:
    """``a.b[0].c`` as ``("a", "b", 0, "c")``."""
    parts = re.findall(r"[^.\[\]]+|\[\d+\]", field)
    return tuple(int(part[1:-1]) if part.startswith("[") else part for part in parts)


def load_documents(source: str | Path) -> tuple[Document, ...]:
    """All documents of a file, ``-`` meaning standard input. Raises SpecError with ``file:line``."""
    name, text = read_text(source)
    parsed = _parse_toml(name, text) if name.endswith(".toml") else _parse_yaml(name, text)
    documents = tuple(parsed)
    if not documents:
        raise SpecError(f"{name}: no manifest in it; expected at least one document")
    return documents


def document_of(manifest: Mapping[str, Any]) -> Document:
    """A manifest that a program has made; relative paths in it begin where the program runs. Raises SpecError."""
    try:
        data = json.loads(json.dumps(manifest))
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"{MADE}: expected texts, numbers, lists and mappings: {error}") from error
    return _document(MADE, data, {(): 1})


def load_folder_or_file(source: str | Path) -> tuple[Document, ...]:
    """The documents of a file, or of every manifest in a folder, by file name."""
    folder = Path(source)
    if not folder.is_dir():
        return load_documents(source)
    paths = sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml", ".toml"})
    if not paths:
        raise SpecError(f"{folder}: no manifest in this folder (*.yaml, *.yml, *.toml)")
    return tuple(document for path in paths for document in load_documents(path))


def read_text(source: str | Path) -> tuple[str, str]:
    """Name and text of a manifest file, ``-`` meaning standard input. Raises SpecError."""
    if str(source) == "-":
        text = sys.stdin.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise SpecError(f"<stdin>: larger than {FILE_BYTES_MAX} bytes; is it a manifest?")
        return "<stdin>", text
    path = Path(source)
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise SpecError(f"{path}: larger than {FILE_BYTES_MAX} bytes; is it a manifest?")
        return str(path), path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SpecError(f"{path}: no such file; pass a manifest with -f, or - for stdin") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from error


def _parse_yaml(name: str, text: str) -> Iterator[Document]:
    from rollout.runs.yaml_reading import load_all, round_trip

    roots = load_all(round_trip(), name, text)
    for root in roots:
        if root is None:
            continue
        lines: dict[FieldPath, int] = {(): (getattr(getattr(root, "lc", None), "line", 0) or 0) + 1}
        yield _document(name, _plain(root, (), lines), lines)


def _plain(node: Any, path: FieldPath, lines: dict[FieldPath, int]) -> Any:
    """Plain Python data of a round-trip node; records the line of every key and item."""
    from ruamel.yaml.comments import CommentedSeq

    if isinstance(node, Mapping):
        for key in node:
            lines[(*path, str(key))] = _line_of(node, "key", key, lines[path])
        return {str(key): _plain(value, (*path, str(key)), lines) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        for index in range(len(node)):
            lines[(*path, index)] = _line_of(node, "item", index, lines[path])
        return [_plain(value, (*path, index), lines) for index, value in enumerate(node)]
    return _scalar(node)


def _line_of(node: Any, kind: str, key: Any, parent: int) -> int:
    """The line of a key or an item; its parent's where ruamel keeps none, as of a merged mapping."""
    try:
        return getattr(node.lc, kind)(key)[0] + 1
    except (AttributeError, LookupError, TypeError):
        return parent


def _scalar(node: Any) -> Any:
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _parse_toml(name: str, text: str) -> Iterator[Document]:
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        found = re.search(r"line (\d+)", str(error))
        place = f"{name}:{found.group(1)}" if found else name
        raise SpecError(f"{place}: not valid TOML: {error}") from error
    yield _document(name, data, _toml_lines(text))


def _toml_lines(text: str) -> dict[FieldPath, int]:
    """Lines of tables and keys, read from their headers (arrays of tables count upwards)."""
    lines: dict[FieldPath, int] = {(): 1}
    table: FieldPath = ()
    seen: dict[FieldPath, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)([^\[\]]+)\]", line):
            table = _keys(header.group(2))
            if header.group(1) == "[[":
                seen[table] = seen.get(table, -1) + 1
                table = (*table, seen[table])
            for depth in range(1, len(table) + 1):
                lines.setdefault(table[:depth], number)
        elif key := re.match(r"\s*([A-Za-z0-9_.\"'-]+)\s*=", line):
            lines.setdefault((*table, *_keys(key.group(1))), number)
    return lines


def _keys(dotted: str) -> FieldPath:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _document(name: str, data: Any, lines: Mapping[FieldPath, int]) -> Document:
    if not isinstance(data, dict):
        raise SpecError(
            f"{name}:{lines[()]}: expected a mapping with kind and spec, got {data!r:.60}"
        )
    if "schema_version" not in data or "apiVersion" in data:
        return Document(source=name, data=data, lines=lines)
    moved = {(("spec", *path) if path else path): line for path, line in lines.items()}
    return Document(source=name, data=_as_object(name, data), lines=moved)


def _as_object(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """A local file says ``schema_version``, perhaps ``name``, and the fields of the spec beside them."""
    version = data["schema_version"]
    if version != 1:
        raise SpecError(f"{name}: schema_version is {version!r}; this rollout reads 1")
    stem = re.sub(r"[^a-z0-9-]+", "-", Path(name).stem.lower()).strip("-") or "run"
    return {
        "apiVersion": API_VERSION,
        "kind": "RolloutRun",
        "metadata": {"name": data.get("name", stem)},
        "spec": {
            key: value for key, value in data.items() if key not in {"schema_version", "name"}
        },
    }
