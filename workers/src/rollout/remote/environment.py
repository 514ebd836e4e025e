"""The environment that a run is started in at a host: this checkout's code over its pins by digest, as `make setup` makes it.

Its name is of its contents, so that a second run finds it. Whoever has not installed rollout from a checkout names an
interpreter of the host that has it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from rollout.errors import HostError, SpecError
from rollout.remote.host import RemoteHost
from rollout.remote.looking import RemoteFacts
from rollout.remote.parcel import Parcel, SentFile, hash_file, parcel_of
from rollout.remote.sending import place_parcel

PACKAGES = ("crds", "workers")
PINS = {"cpu": "constraints.hashes.txt", "cuda": "constraints.cuda.hashes.txt"}
BESIDE = ("bootstrap.hashes.txt", "pyproject.toml", *PINS.values())
FORMAT = 1
"""Raised when another way of installing makes another environment of the same files."""
INSTALL_SECONDS_MAX = 5 * 3700.0
LEFT_OUT = frozenset({"__pycache__", "build", ".venv"})


def find_checkout() -> Path:
    """The checkout that this rollout is installed from. Raises SpecError."""
    folder = Path(__file__).parents[4]
    if all((folder / one).is_file() for one in BESIDE):
        return folder
    raise SpecError(
        "--on: rollout is not installed from a checkout here, so that there are no pins to install at the host:"
        " name an interpreter there that has it, with --remote-python"
    )


def pack_sources(checkout: Path) -> Parcel:
    """What an environment is installed from."""
    return parcel_of([_sent(checkout, one) for one in sorted(_sources(checkout))])


def _sources(checkout: Path) -> Iterator[Path]:
    yield from (checkout / one for one in BESIDE)
    for package in PACKAGES:
        yield checkout / package / "pyproject.toml"
        for file in (checkout / package / "src").rglob("*"):
            names = file.relative_to(checkout).parts
            in_metadata = any(one.endswith(".egg-info") for one in names)
            if file.is_file() and not in_metadata and not LEFT_OUT.intersection(names):
                yield file


def _sent(checkout: Path, file: Path) -> SentFile:
    digest, size = hash_file(file)
    path = file.relative_to(checkout).as_posix()
    return SentFile(path=path, source=file, digest=digest, size=size)


def name_environment(sources: Parcel, accelerator: str, python: tuple[int, int]) -> str:
    """Its name: of the sources, the pins and the interpreter that it is made of."""
    made_of = [FORMAT, sources.name, accelerator, *python]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:24]


def ensure_environment(host: RemoteHost, facts: RemoteFacts) -> tuple[str, bool]:
    """The interpreter of this checkout's environment at the host, and whether it was made now. Raises HostError."""
    if facts.python is None:
        raise HostError(f"{host.ssh.address}: there is no Python to make an environment of")
    sources = pack_sources(find_checkout())
    folder, _ = place_parcel(host, sources, "sources")
    request = {
        "name": name_environment(sources, facts.accelerator, facts.python.version),
        "python": facts.python.path,
        "sources": folder,
        "packages": list(PACKAGES),
        "pins": PINS[facts.accelerator],
    }
    answer = host.again(lambda: host.ask("install", request, seconds_max=INSTALL_SECONDS_MAX))
    return answer["python"], answer["is_new"]
