"""What a host has before anything is there: asked of its shell alone, and judged in the doctor's words.

The whole of ``rollout doctor`` needs an environment; this says what keeps one from being made, or a run from fitting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rollout.doctor.judge import DISK_MIN, GIB, MEMORY_MIN, Diagnosis
from rollout.errors import HostError
from rollout.remote.host import PYTHONS

PYTHON_MIN, PYTHON_MAX = (3, 11), (3, 14)
ENVIRONMENT_BYTES = 8 * GIB
"""What is needed beside a run for a whole environment, the packages' cache included."""
FACTS = "rollout-facts"
LOOK = f"""
echo {FACTS}
cache=${{XDG_CACHE_HOME:-$HOME/.cache}}/rollout; data=${{XDG_DATA_HOME:-$HOME/.local/share}}/rollout
echo "system=$(uname -s)"; echo "architecture=$(uname -m)"
for p in {" ".join(PYTHONS)}; do
  v=$("$p" -c 'import sys; print("%d.%d %s" % (sys.version_info[0], sys.version_info[1], sys.executable))' 2>/dev/null) && echo "python=$v"
done
for place in cache data; do
  eval "path=\\$$place"; there=$path
  while [ ! -e "$there" ] && [ "$there" != / ] && [ "$there" != . ]; do there=$(dirname "$there"); done
  [ -w "$there" ] && echo "$place=$(df -Pk "$there" | awk 'NR==2 {{print $4}}') $path" || echo "$place=no $path"
done
echo "memory=$(awk '/^MemAvailable:/ {{print $2}}' /proc/meminfo 2>/dev/null)"
echo "driver=$(sed -n 's/.* \\([0-9][0-9]*\\.[0-9][0-9.]*\\) .*/\\1/p' /proc/driver/nvidia/version 2>/dev/null | head -n 1)"
echo "devices=$(ls -d /dev/nvidia[0-9]* 2>/dev/null | wc -l)"
"""
"""Needs a POSIX shell, uname, df, awk, sed and dirname; what is missing gives an empty fact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePython:
    """An interpreter of the host, by its own word."""

    version: tuple[int, int]
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFolder:
    """A place of the host. ``free`` in bytes; None: this user cannot write there."""

    path: str
    free: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFacts:
    """What was found. ``memory`` in bytes, 0 where it is not told; ``pythons`` in the order in which they were looked for."""

    system: str
    architecture: str
    pythons: tuple[RemotePython, ...]
    cache: RemoteFolder
    data: RemoteFolder
    memory: int
    driver: str
    devices: int

    @property
    def python(self) -> RemotePython | None:
        """The first that an environment can be made with."""
        return next((one for one in self.pythons if _is_usable(one)), None)

    @property
    def accelerator(self) -> str:
        """Which pins an environment is made of."""
        return "cuda" if self.devices else "cpu"


def parse_facts(said: str) -> RemoteFacts:
    """Facts from what LOOK has printed. Raises HostError where it printed none."""
    _, mark, told = said.partition(f"{FACTS}\n")
    if not mark:
        raise HostError(
            f"the host's shell is no POSIX shell, or ends by itself: it said {said[:200]!r}"
        )
    found: dict[str, list[str]] = {}
    for line in told.splitlines():
        name, is_fact, value = line.partition("=")
        if is_fact:
            found.setdefault(name, []).append(value.strip())
    one = {name: values[0] for name, values in found.items()}
    return RemoteFacts(
        system=one.get("system", "").lower(),
        architecture=one.get("architecture", ""),
        pythons=tuple(_pythons(found.get("python", []))),
        cache=_folder(one, "cache"),
        data=_folder(one, "data"),
        memory=_number(one.get("memory", "")) * 1024,
        driver=one.get("driver", ""),
        devices=_number(one.get("devices", "")),
    )


def _pythons(values: list[str]) -> Iterator[RemotePython]:
    for value in values:
        if read := re.fullmatch(r"(\d+)\.(\d+) (/.+)", value):
            yield RemotePython(version=(int(read[1]), int(read[2])), path=read[3])


def _folder(found: Mapping[str, str], name: str) -> RemoteFolder:
    free, _, path = found.get(name, "").partition(" ")
    return RemoteFolder(path=path, free=_number(free) * 1024 if free.isdigit() else None)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _is_usable(python: RemotePython) -> bool:
    return PYTHON_MIN <= python.version <= PYTHON_MAX


def judge_host(facts: RemoteFacts, *, needed: int, installs: bool) -> tuple[Diagnosis, ...]:
    """What was found, what each lack costs, and what to do. ``needed``: bytes of files to be sent.

    ``installs``: an environment is to be made, which needs a Python, room, and Linux on x86_64.
    """
    found = [_platform(facts)]
    if installs:
        found.append(_python(facts))
    room = ENVIRONMENT_BYTES if installs else 0
    found.append(_disk("cache", facts.cache, (needed, room), "XDG_CACHE_HOME"))
    found.append(_disk("data", facts.data, (needed, DISK_MIN), "XDG_DATA_HOME"))
    return (*found, _memory(facts), _devices(facts))


def _platform(facts: RemoteFacts) -> Diagnosis:
    found = f"{facts.system} {facts.architecture}"
    if (facts.system, facts.architecture) == ("linux", "x86_64"):
        return Diagnosis(name="platform", state="ok", found=found)
    return Diagnosis(
        name="platform",
        state="broken",
        found=found,
        costs="the pinned packages are for Linux on x86_64",
        fix="take such a host",
    )


def _python(facts: RemoteFacts) -> Diagnosis:
    if facts.python is not None:
        version = ".".join(map(str, facts.python.version))
        return Diagnosis(name="Python", state="ok", found=f"{version}, {facts.python.path}")
    old = ", ".join(".".join(map(str, one.version)) for one in facts.pythons)
    return Diagnosis(
        name="Python",
        state="broken",
        found=f"{old} only" if old else "none",
        costs="no environment can be made",
        fix="install Python 3.11 or newer with its venv module, or name an interpreter that has rollout: --remote-python",
    )


def _disk(name: str, folder: RemoteFolder, room: tuple[int, int], variable: str) -> Diagnosis:
    """``room``: bytes that are certainly needed, and those that may be beside them."""
    certain, possible = room
    if folder.free is None:
        return Diagnosis(
            name=name,
            state="broken",
            found=f"{folder.path or 'no folder'}: cannot be written",
            costs="nothing can be sent",
            fix=f"set {variable} there to a folder of this user",
        )
    found = f"{folder.path}: {folder.free / GIB:.1f} GiB free"
    if folder.free >= certain + possible:
        return Diagnosis(name=name, state="ok", found=found)
    return Diagnosis(
        name=name,
        state="lack" if folder.free > certain else "broken",
        found=found,
        costs=f"{(certain + possible) / GIB:.1f} GiB may be needed: the disk would be full",
        fix=f"make room, or set {variable} there to another disk",
    )


def _memory(facts: RemoteFacts) -> Diagnosis:
    found = f"{facts.memory / GIB:.1f} GiB free"
    if facts.memory >= MEMORY_MIN:
        return Diagnosis(name="memory", state="ok", found=found)
    fix = "end what else uses it, or take a larger machine"
    return Diagnosis(name="memory", state="lack", found=found, costs="tiny models only", fix=fix)


def _devices(facts: RemoteFacts) -> Diagnosis:
    if not facts.devices:
        return Diagnosis(
            name="devices",
            state="lack",
            found="none: runs use the processor",
            costs="models of some hundred million parameters at most, at a walk",
            fix="take a machine with a CUDA device for more",
        )
    if not facts.driver:
        return Diagnosis(
            name="devices",
            state="broken",
            found=f"{facts.devices} in /dev, no driver",
            costs="runs use the processor, or are refused",
            fix="install a driver as new as torch's CUDA, and let this user open /dev/nvidia*",
        )
    return Diagnosis(
        name="devices", state="ok", found=f"{facts.devices} in /dev, driver {facts.driver}"
    )
