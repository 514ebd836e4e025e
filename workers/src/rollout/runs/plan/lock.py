"""``plan.lock``: canonical, content-addressed, and refused when it or its inputs have changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blake3 import blake3

from rollout.common.atomic_files import replace_text
from rollout.errors import SpecError
from rollout.runs.manifest import Document
from rollout.runs.plan.build import Plan, build_plan

PLAN_VERSION = 1
VOLATILE = frozenset({"modelPath"})
"""What may differ between machines without being drift."""


def render_plan(plan: Plan) -> str:
    """The file's text: sorted keys, and the digest of everything else under ``digest``."""
    content: dict[str, Any] = {
        "planVersion": PLAN_VERSION,
        "runs": [asdict(run) for run in plan.runs],
    }
    content["digest"] = digest_of(content)
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def digest_of(content: Mapping[str, Any]) -> str:
    """blake3 over the canonical bytes of everything but the digest itself."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return f"blake3:{blake3(text.encode()).hexdigest()}"


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan, whole or not at all."""
    replace_text(path, render_plan(plan))


def read_plan(path: Path) -> dict[str, Any]:
    """A plan's content. Raises SpecError when it is missing, edited, or of another version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SpecError(
            f"{path}: no such plan; write one with rollout plan -f ... -o {path}"
        ) from error
    except ValueError as error:
        raise SpecError(f"{path}: not a plan: {error}") from error
    if content.get("planVersion") != PLAN_VERSION:
        raise SpecError(
            f"{path}: plan version {content.get('planVersion')}, expected {PLAN_VERSION}"
        )
    if content.get("digest") != digest_of(content):
        raise SpecError(f"{path}: the plan was edited after it was made; plan again")
    return content


def documents_of_plan(path: Path, overrides: Sequence[str] = ()) -> list[Document]:
    """The manifests a plan holds, after looking everything up again. Raises SpecError on drift."""
    if overrides:
        raise SpecError("--set cannot change a plan; plan again with --set")
    content = read_plan(path)
    documents = [
        Document(source=run["source"], data=run["manifest"], lines={(): 1})
        for run in content["runs"]
    ]
    now = json.loads(render_plan(build_plan(documents, offline=False)))
    drift = find_drift(content, now)
    if drift:
        raise SpecError(
            f"{path}: inputs have drifted since this plan was made; plan again if that is meant:\n  "
            + "\n  ".join(drift)
        )
    return documents


def find_drift(planned: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line per input that differs, by run."""
    lines = []
    for before, after in zip(planned["runs"], now["runs"], strict=True):
        unresolved = {item["field"] for item in before["unresolved"]}
        for part in ("spec", "resolved"):
            if part == "resolved" and unresolved and not before[part]:
                continue
            for field, old, new in differences(before[part], after[part]):
                if field.split(".")[0] not in VOLATILE:
                    lines.append(f"{before['name']}: {part}.{field}: planned {old!r}, now {new!r}")
    return lines


def differences(old: Any, new: Any, field: str = "") -> list[tuple[str, Any, Any]]:
    """(dotted field, old, new) for every leaf that differs."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = []
        for key in sorted(old.keys() | new.keys()):
            inner = f"{field}.{key}" if field else str(key)
            found += differences(old.get(key), new.get(key), inner)
        return found
    return [] if old == new else [(field, old, new)]
