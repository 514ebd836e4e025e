"""The files that a program finds in its sandbox: those of the run's code that its manifest names, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rollout.errors import SpecError
from rollout.plugins.user_code import find_file
from rollout.tools.sandbox.served import FILES_BYTES_MAX, FILES_MAX


def read_files(
    files: Sequence[str], folders: Sequence[Path], what: str
) -> tuple[tuple[str, bytes], ...]:
    """Path in the sandbox and bytes of each, by path. ``folders`` are where the run's code lies, ``what`` the program's field.

    Of a folder all that lies below it, but hidden files, caches of Python and what a link leads to. Raises SpecError
    for a path that is not there or leads out of the code, and for more than a sandbox takes.
    """
    if files and not folders:
        raise SpecError(f"{what}: files: they are of the run's code: set spec.code: {{path: ...}}")
    found: dict[str, Path] = {}
    for given in files:
        found.update(_find(given, folders, what))
    size = sum(path.stat().st_size for path in found.values())
    if len(found) > FILES_MAX or size > FILES_BYTES_MAX:
        raise SpecError(
            f"{what}: files: {len(found)} files of {size} bytes; a sandbox takes {FILES_MAX} of"
            f" {FILES_BYTES_MAX >> 20} MiB together: name fewer"
        )
    return tuple((name, found[name].read_bytes()) for name in sorted(found))


def _find(given: str, folders: Sequence[Path], what: str) -> Iterator[tuple[str, Path]]:
    path = Path(given)
    if path.is_absolute() or ".." in path.parts:
        raise SpecError(f"{what}: files: {given!r}: expected a path in the run's code, without ..")
    for folder in folders:
        if (folder / path).is_dir() and (folder / path).resolve().is_relative_to(folder.resolve()):
            yield from ((str(one.relative_to(folder)), one) for one in _below(folder / path))
            return
    file = find_file(given, folders)
    if not any(file.resolve().is_relative_to(folder.resolve()) for folder in folders):
        raise SpecError(f"{what}: files: {given!r} is a link that leads out of the run's code")
    yield str(path), file


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _below(path)
        elif path.is_file():
            yield path
