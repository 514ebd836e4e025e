"""A run at a host, from its first look to its results: started there once, followed over cuts, brought home."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout.doctor.judge import Diagnosis
from rollout.errors import HostError
from rollout.remote.environment import ensure_environment
from rollout.remote.fetching import RemoteFile, fetch_files
from rollout.remote.host import RemoteHost
from rollout.remote.looking import LOOK, RemoteFacts, judge_host, parse_facts
from rollout.remote.parcel import Parcel
from rollout.remote.sending import place_parcel

START_SECONDS_MAX = 3700.0
RESULTS_SECONDS_MAX = 3700.0
DOCTOR_SECONDS_MAX = 300.0
BROUGHT = ("snapshot", "model")
"""What may be asked for beside report, records and logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedThere:
    """What became of a start: the run's name, or, where ``exit_code`` is not 0, why there is none."""

    exit_code: int
    said: str
    run: str = ""


def look_at_host(
    host: RemoteHost, *, needed: int, installs: bool
) -> tuple[RemoteFacts, tuple[Diagnosis, ...]]:
    """The host's facts, and what they mean. Raises HostError where it cannot be reached, or would not do."""
    facts = parse_facts(host.look(LOOK))
    findings = judge_host(facts, needed=needed, installs=installs)
    require_sound(host, findings)
    return facts, findings


def require_sound(host: RemoteHost, findings: Sequence[Diagnosis]) -> None:
    """Raises HostError with all that is broken."""
    broken = [one for one in findings if one.state == "broken"]
    if broken:
        told = "; ".join(f"{one.name}: {one.found}: {one.costs}; {one.fix}" for one in broken)
        raise HostError(f"{host.ssh.address} would not do: {told}")


def find_interpreter(host: RemoteHost, facts: RemoteFacts, named: str | None) -> str:
    """Where the run is started with: the named one, once it has shown that it has rollout, or this checkout's environment."""
    if named is None:
        python, is_new = ensure_environment(host, facts)
        if is_new:
            require_sound(host, ask_doctor(host, python))
        return python
    host.again(lambda: host.ask("has_rollout", {"python": named}))
    return named


def ask_doctor(host: RemoteHost, python: str) -> tuple[Diagnosis, ...]:
    """What the whole doctor says there."""
    asked = {"python": python}
    answer = host.again(lambda: host.ask("doctor", asked, seconds_max=DOCTOR_SECONDS_MAX))
    return tuple(Diagnosis(**one) for one in answer["findings"])


def start_there(
    host: RemoteHost,
    parcel: Parcel,
    python: str,
    options: Sequence[str],
    secrets: Mapping[str, str],
) -> StartedThere:
    """Send what the run needs, and start it in the background there, once however often the connection is cut."""
    folder, _ = place_parcel(host, parcel, "jobs")
    request = {
        "token": uuid.uuid4().hex,
        "python": python,
        "folder": folder,
        "options": list(options),
        "secrets": dict(secrets),
    }
    answer = host.again(lambda: host.ask("start", request, seconds_max=START_SECONDS_MAX))
    return StartedThere(
        exit_code=answer["exit_code"], said=answer["said"], run=answer.get("run", "")
    )


def command_there(
    host: RemoteHost, words: Sequence[str | None], run: str | None, show: Callable[[bytes], None]
) -> int:
    """One of rollout's own commands there, with its words as they come; a word that is None is the run's whole name."""
    request = {"run": run, "words": list(words)}
    return host.again(lambda: host.exit_code("command", request, show))


def bring_results(host: RemoteHost, run: str, bring: Sequence[str], home: Path) -> Path:
    """The run's report, records and logs, and what was asked for, in a folder of ``home``. Raises HostError."""
    asked = {"run": run, "bring": list(bring)}
    told = host.again(lambda: host.ask("results", asked, seconds_max=RESULTS_SECONDS_MAX))
    target = home / f"{told['run']}@{host.name}"
    files = [
        RemoteFile(name=name, path=path, size=size, digest=digest)
        for name, path, size, digest in told["files"]
    ]
    host.again(lambda: fetch_files(host, files, target))
    return target
