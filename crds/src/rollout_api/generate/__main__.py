"""`python -m rollout_api.generate [--check] [--root FOLDER]`: write the generated files, or compare."""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from rollout_api.generate.outputs import ALL_GENERATED, build_outputs


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when all is well, 1 when ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="rollout_api.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    parser.add_argument("--root", type=Path, default=Path(), help="root of the repository")
    options = parser.parse_args(arguments)
    outputs = build_outputs(version("rollout-api"))
    changed, stale = find_differences(options.root, outputs)
    if not options.check:
        write_outputs(options.root, outputs, stale)
    for path in [*changed, *stale]:
        sys.stdout.write(f"{'differs' if options.check else 'wrote'}: {path}\n")
    return 1 if options.check and (changed or stale) else 0


def find_differences(root: Path, outputs: dict[str, str]) -> tuple[list[str], list[str]]:
    """Paths whose text differs, and files in generated folders that nothing generates any more."""
    changed = [path for path, text in outputs.items() if _read(root / path) != text]
    found = [path for folder in ALL_GENERATED for path in (root / folder).glob("*")]
    return changed, sorted({path.relative_to(root).as_posix() for path in found} - set(outputs))


def write_outputs(root: Path, outputs: dict[str, str], stale: list[str]) -> None:
    """Write every file, and remove those that are stale."""
    for path, text in outputs.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    for path in stale:
        (root / path).unlink()


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
