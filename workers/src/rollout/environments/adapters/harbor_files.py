"""Folders of tasks in Harbor's form, read: what their sandbox has at first, and what of it cannot be had here.

``task.toml``, ``instruction.md``, ``environment/``, ``tests/test.sh``; ``solution/`` is never shown to anybody. Nothing
of a task is changed and nothing that it asks for is left out silently: what this machine's sandbox has not is refused
by name. A pod has one image, and no image is built for it. Source: the package harbor 0.25.0, ``models/task/config.py`` and ``verifier/verifier.py`` (schema 1.4).
"""

from __future__ import annotations

import posixpath
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollout.errors import SpecError
from rollout.tools.sandbox.served import FILES_BYTES_MAX, FILES_MAX

WORKDIR = "/app"
SECONDS = 600.0
"""Of a verifier and of an agent whose task says nothing."""
MEMORY_MIB = 1024
UNDERSTOOD: Mapping[str, frozenset[str]] = {
    "": frozenset({"version", "schema_version", "source", "task", "metadata", "solution"})
    | {"agent", "verifier", "environment"},
    "agent": frozenset({"timeout_sec", "user", "network_mode"}),
    "verifier": frozenset({"timeout_sec", "user", "env", "environment_mode", "network_mode"}),
    "environment": frozenset(
        {"build_timeout_sec", "docker_image", "os", "cpus", "memory_mb", "storage_mb", "memory"}
        | {"storage", "gpus", "env", "workdir", "allow_internet", "network_mode"}
    ),
}
"""What may stand in each section; ``user``, ``cpus`` and ``build_timeout_sec`` have no effect: a sandbox has one user."""
NO_EFFECT = frozenset({"LABEL", "EXPOSE", "CMD", "MAINTAINER", "STOPSIGNAL"})
"""Lines of a Dockerfile that say nothing of what a command finds."""
SIZES = {"": 1, "M": 1, "G": 1024}
SIZE = re.compile(r"(\d+)\s*([MG]?)i?B?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborHere:
    """What the user says of where the tasks are played."""

    images: frozenset[str] = frozenset()
    """Names of images whose place its system, or that of the pods, takes."""
    image: str = ""
    """Image of the sandbox pods, where the manifest names one."""
    offline: bool = False
    """Tasks and tests need no network, though they do not say so."""
    ran: bool = False
    """What a Dockerfile's ``RUN`` lines do is done there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """One task. Files are by path, texts as bytes."""

    name: str
    """Of its folder."""
    instruction: str
    """``instruction.md``."""
    files: tuple[tuple[str, bytes], ...]
    """By path below the working folder."""
    tests: tuple[tuple[str, bytes], ...]
    """By path below ``/tests``; ``test.sh`` is among them."""
    agent_seconds: float
    """What the agent may take, without the model's time."""
    verifier_seconds: float
    """What the tests may take."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of the agent, by name."""
    verifier_environment: tuple[tuple[str, str], ...] = ()
    """Variables of the tests, by name."""
    memory_bytes: int = MEMORY_MIB << 20
    """Of the sandbox; of a pod at most what that has."""
    memory_is_asked: bool = False
    """Whether the task says so itself, so that less will not do."""


@dataclass(slots=True)
class _Built:
    """What a Dockerfile comes to so far."""

    image: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


def find_tasks(place: Path) -> tuple[Path, ...]:
    """The folder itself where it is a task, else those in it that are, by name. Raises SpecError where there is none."""
    if (place / "task.toml").is_file():
        return (place,)
    listed = sorted(place.iterdir()) if place.is_dir() else []
    found = tuple(one for one in listed if (one / "task.toml").is_file())
    if not found:
        raise SpecError(
            f"harbor: {place} is no task and holds none: expected folders with task.toml"
        )
    return found


def read_task(folder: Path, here: HarborHere) -> HarborTask:
    """The task of a folder. Raises SpecError naming the task, what it asks for, and what to do."""
    name = folder.name
    settings = _settings(folder)
    asked, verifier = settings.get("environment", {}), settings.get("verifier", {})
    _require_offline(name, settings, here)
    built = _build(folder, asked, here)
    memory_mib = _mib(name, asked, "memory", MEMORY_MIB)
    tests = _files(folder, "tests", name)
    if "test.sh" not in tests:
        raise SpecError(f"harbor: task {name}: tests/test.sh is not there: it is what judges")
    return HarborTask(
        name=name,
        instruction=_text(folder / "instruction.md", name),
        files=_fitting(name, built.files),
        tests=_fitting(name, tests),
        agent_seconds=_seconds(name, settings, "agent"),
        verifier_seconds=_seconds(name, settings, "verifier"),
        environment=_variables(name, {**built.environment, **asked.get("env", {})}),
        verifier_environment=_variables(name, {**built.environment, **verifier.get("env", {})}),
        memory_bytes=memory_mib << 20,
        memory_is_asked=bool(asked.keys() & {"memory", "memory_mb"}),
    )


def _settings(folder: Path) -> dict[str, Any]:
    name = folder.name
    try:
        settings = tomllib.loads(_text(folder / "task.toml", name))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"harbor: task {name}: task.toml is no TOML: {error}") from error
    for section, understood in UNDERSTOOD.items():
        said = settings.get(section, {}) if section else settings
        if not isinstance(said, dict):
            raise SpecError(f"harbor: task {name}: {section} must be a section, got {said!r:.60}")
        for key in sorted(key for key in said if key not in understood and said[key]):
            where = f"{section}.{key}" if section else key
            raise SpecError(
                f"harbor: task {name}: {where} ({said[key]!r:.60}) is nothing that a sandbox here has:"
                " leave the task out with `only`"
            )
    _require_plain(name, settings)
    return settings


def _require_plain(name: str, settings: Mapping[str, Any]) -> None:
    """One Linux container without devices, in which the verifier runs too."""
    asked, verifier = settings.get("environment", {}), settings.get("verifier", {})
    for where, value, wanted in (
        ("environment.os", asked.get("os"), "linux"),
        ("environment.gpus", asked.get("gpus") or None, "none"),
        ("environment.workdir", asked.get("workdir"), WORKDIR),
        ("verifier.environment_mode", verifier.get("environment_mode"), "shared"),
    ):
        if value is not None and value != wanted:
            raise SpecError(
                f"harbor: task {name}: {where} is {value!r}, a sandbox here has {wanted}: leave the task out with"
                " `only`"
            )


def _require_offline(name: str, settings: Mapping[str, Any], here: HarborHere) -> None:
    """A sandbox has no network, and a task has one unless it says otherwise."""
    asked = settings.get("environment", {})
    internet = asked.get("allow_internet")
    mode = asked.get("network_mode", "no-network" if internet is False else "public")
    modes = {
        mode,
        *(settings.get(role, {}).get("network_mode", mode) for role in ("agent", "verifier")),
    }
    if modes != {"no-network"} and not here.offline:
        raise SpecError(
            f"harbor: task {name}: it may use the network (network_mode {mode!r}), which a sandbox has not; its tests"
            " would fail and be scored. Say `offline: 'true'` where its tasks and tests need none"
        )


def _build(folder: Path, asked: Mapping[str, Any], here: HarborHere) -> _Built:
    """What a container would begin with. Raises SpecError for what cannot be had."""
    name, place = folder.name, folder / "environment"
    for other in ("docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml"):
        if (place / other).exists():
            raise SpecError(f"harbor: task {name}: environment/{other}: a sandbox is one program's")
    built = _Built(image=str(asked.get("docker_image") or ""))
    if (place / "Dockerfile").is_file():
        for word, rest in dockerfile_lines(_text(place / "Dockerfile", name)):
            _take_line(name, place, word, rest, built, here)
    if not built.image:
        raise SpecError(
            f"harbor: task {name}: it names no image: neither environment/Dockerfile nor docker_image"
        )
    if built.image not in here.images:
        _require_image(name, built, here, is_prebuilt=bool(asked.get("docker_image")))
    return built


def _require_image(name: str, built: _Built, here: HarborHere, *, is_prebuilt: bool) -> None:
    """Raise SpecError unless the pods have it as they are: of a prebuilt one they do not see what lies in its /app."""
    if here.image and is_same_image(here.image, built.image) and not is_prebuilt:
        return
    there = f"the image of the pods ({here.image})" if here.image else "this machine's own system"
    more = "" if here.image else "; in a cluster `image` names what its pods have"
    unseen = ", with nothing of what its /app holds" if is_prebuilt else ""
    raise SpecError(
        f"harbor: task {name}: its image {built.image} cannot be had here; where {there} does as well{unseen}, name it"
        f" in `instead`{more}"
    )


def is_same_image(named: str, wanted: str) -> bool:
    """Whether a task's image is the one that is named: its repository and tag, and its digest where both have one."""
    (mine, my_digest), (its, its_digest) = map(_image_parts, (named, wanted))
    if my_digest and its_digest:
        return my_digest == its_digest and mine.partition(":")[0] == its.partition(":")[0]
    return mine == its


def _image_parts(reference: str) -> tuple[str, str]:
    """Repository and tag, without the registry that is meant where none is named; and the digest."""
    bare, _, digest = reference.partition("@")
    for prefix in ("docker.io/", "library/"):
        bare = bare.removeprefix(prefix)
    tagged = ":" in bare.rpartition("/")[2]
    return (bare if tagged or digest else f"{bare}:latest"), digest


def dockerfile_lines(text: str) -> Iterator[tuple[str, str]]:
    """Instruction and its words, of each; continued lines are one."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(kept)).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            yield word.upper(), rest.strip()


def _take_line(
    name: str, place: Path, word: str, rest: str, built: _Built, here: HarborHere
) -> None:
    line = f"harbor: task {name}: environment/Dockerfile: {word} {rest:.80}"
    words = _words(rest, line)
    if word == "FROM":
        if built.files or len(words) != 1 or built.image not in ("", words[0]):
            raise SpecError(f"{line}: one plain image is taken, not several stages")
        built.image = words[0]
    elif word == "COPY":
        _copy(place, words, built.files, line)
    elif word == "ENV":
        built.environment |= _assignments(words, line)
    else:
        _pass_line(word, rest, here, line)


def _pass_line(word: str, rest: str, here: HarborHere, line: str) -> None:
    """One that adds nothing here. Raises SpecError where it would."""
    if word == "WORKDIR" and posixpath.normpath(rest) != WORKDIR:
        raise SpecError(f"{line}: a sandbox works in {WORKDIR}")
    if word == "RUN" and not here.ran:
        raise SpecError(
            f"{line}: nothing is built; where this machine's own system, in a cluster the image of the pods, has all"
            " that such lines make, say `ran: 'true'`"
        )
    if word not in NO_EFFECT | {"WORKDIR", "RUN"}:
        raise SpecError(f"{line}: not understood here: leave the task out with `only`")


def _words(text: str, line: str) -> list[str]:
    if text.startswith("["):
        raise SpecError(f"{line}: written as a list, which is not understood here")
    try:
        return shlex.split(text) if not text.startswith("<<") else [text]
    except ValueError:
        return [text]  # a shell's line, which only RUN has


def _assignments(words: list[str], line: str) -> dict[str, str]:
    if all("=" in word for word in words):
        return dict(word.split("=", 1) for word in words)
    if len(words) < 2:
        raise SpecError(f"{line}: expected NAME=value")
    return {words[0]: " ".join(words[1:])}


def _copy(place: Path, words: list[str], files: dict[str, bytes], line: str) -> None:
    if len(words) < 2 or any(word.startswith("--") or set(word) & set("*?[$<") for word in words):
        raise SpecError(f"{line}: expected files and folders of environment/, and where to")
    *sources, target = words
    to = posixpath.normpath(posixpath.join(WORKDIR, target))
    if to != WORKDIR and not to.startswith(f"{WORKDIR}/"):
        raise SpecError(f"{line}: only what lies below {WORKDIR} can be put into a sandbox")
    folder_meant = target.endswith(("/", "/.")) or to == WORKDIR or len(sources) > 1
    for source in sources:
        found = (place / source.lstrip("/")).resolve()
        if not found.is_relative_to(place.resolve()) or not found.exists():
            raise SpecError(f"{line}: {source} is not there")
        if found.is_dir():
            copied = {f"{to}/{one}": data for one, data in _below(found, line)}
        else:
            copied = {f"{to}/{found.name}" if folder_meant else to: found.read_bytes()}
        files.update({path.removeprefix(f"{WORKDIR}/"): data for path, data in copied.items()})


def _files(folder: Path, part: str, name: str) -> dict[str, bytes]:
    if not (folder / part).is_dir():
        raise SpecError(f"harbor: task {name}: it has no folder {part}")
    return dict(_below(folder / part, f"harbor: task {name}: {part}"))


def _below(folder: Path, what: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise SpecError(f"{what}: {path.name} is a link: a sandbox is given files")
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def _fitting(name: str, files: Mapping[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    size = sum(map(len, files.values()))
    if len(files) > FILES_MAX or size > FILES_BYTES_MAX:
        raise SpecError(
            f"harbor: task {name}: {len(files)} files of {size} bytes; a sandbox takes {FILES_MAX} of"
            f" {FILES_BYTES_MAX >> 20} MiB together: leave the task out with `only`"
        )
    return tuple(sorted(files.items()))


def _variables(name: str, said: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    for key, value in said.items():
        if "$" in str(value):
            raise SpecError(
                f"harbor: task {name}: the variable {key} is taken from outside ({value!r:.60}): nothing of this"
                " machine's environment goes into a sandbox"
            )
    return tuple((key, str(value)) for key, value in sorted(said.items()))


def _seconds(name: str, settings: Mapping[str, Any], role: str) -> float:
    found = settings.get(role, {}).get("timeout_sec", SECONDS)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 86_400:
        raise SpecError(f"harbor: task {name}: {role}.timeout_sec must be seconds, got {found!r}")
    return float(found)


def _mib(name: str, asked: Mapping[str, Any], what: str, otherwise: int) -> int:
    """``memory_mb``, or the older ``memory: 2G``, in MiB."""
    found = asked.get(f"{what}_mb", asked.get(what, otherwise))
    parts = SIZE.fullmatch(str(found).strip())
    if parts is None or int(parts[1]) < 1:
        raise SpecError(f"harbor: task {name}: environment.{what} must be a size, got {found!r}")
    return int(parts[1]) * SIZES[parts[2].upper()]


def _text(path: Path, name: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"harbor: task {name}: {path.name} cannot be read: {error}") from error
