"""The reference page of fields and their readers; ``python tests/fields/table.py`` writes it.

The test beside it compares the page with what it finds, so that page and code cannot part.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from configs import build_place
from consumers import CONSUMERS
from reading import REFUSED, Reader, Reading, leaves

from rollout.learner.model.numerics import apply_numerics

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "fields.md"
HEAD = """# Fields and who reads them

Generated from `tests/fields/`: each field was changed by itself in a manifest that is valid, and the part named here
answered otherwise. `runtime.` stands for the `spec` of RolloutRuntime and ClusterRolloutRuntime. A line that ends in
`.*` stands for all fields of that object. What RolloutEndpoint does with each field is in
`docs/how-to/serve-a-model.md`, RolloutSnapshot in `docs/how-to/take-snapshots.md`, and RolloutSweep in
`docs/how-to/sweep-in-a-cluster.md`.
"""


def read_all(folder: Path) -> list[Reading]:
    """Every field's reader."""
    apply_numerics(threads=1, exact=True)
    reader = Reader(build_place(folder))
    return [reader.read(field) for field in leaves()]


def render(readings: Sequence[Reading]) -> str:
    """The page."""
    found = {one.field.path: one.consumer for one in readings}
    counts = Counter(found.values())
    kinds = [f"| `{name}` | {_describe(name)} | {counts[name]} |" for name in _order(counts)]
    lines = [f"| `{path}` | `{name}` | {count} |" for path, name, count in collapse(found)]
    return "\n".join(
        [
            HEAD,
            "| reader | what of it differed | fields |",
            "| --- | --- | --- |",
            *kinds,
            "",
            "| field | reader | fields |",
            "| --- | --- | --- |",
            *lines,
            "",
        ]
    )


def _order(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))


def _describe(name: str) -> str:
    if name == REFUSED:
        return "refused by name: `rollout validate`, the webhook and the operator say what to write instead"
    one = CONSUMERS[name]
    return f"{one.kind}: {one.what}"


def collapse(found: dict[str, str]) -> Iterable[tuple[str, str, int]]:
    """Paths by reader, an object whose fields all have one reader as one line."""
    done: set[str] = set()
    for path, name in found.items():
        if path in done:
            continue
        widest = path
        for parent in _parents(path):
            if {found[one] for one in found if _is_below(one, parent)} == {name}:
                widest = parent
                break
        below = [one for one in found if one == widest or _is_below(one, widest)]
        done.update(below)
        yield (path if len(below) == 1 else f"{widest}.*"), name, len(below)


def _parents(path: str) -> list[str]:
    """From the widest object but the root to the nearest."""
    parts = path.split(".")
    return [".".join(parts[:length]) for length in range(2, len(parts))]


def _is_below(path: str, parent: str) -> bool:
    return path.startswith(f"{parent}.")


def main() -> None:
    """Write the page, or say which fields nobody reads."""
    with tempfile.TemporaryDirectory() as folder:
        readings = read_all(Path(folder))
    if problems := [one.problem for one in readings if one.problem]:
        sys.exit("\n".join(problems))
    PAGE.write_text(render(readings))


if __name__ == "__main__":
    main()
