"""What runs on the host at the far end of ssh: one request in, one answer out, then bytes or another program's words.

Standard library alone, and any Python from 3.9: it is sent as text and starts before anything is installed. Every request
may be made again: what was done is found, what was cut is gone on with. Sent files lie under their SHA-256 in the cache
folder; runs, and the folders that they were started in, in the data folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

Request = dict[str, Any]
ANSWER = b"rollout-answer:"
"""Before each answer: what a shell's start-up files print goes before it."""
REQUEST_BYTES_MAX = 64 << 20
CHUNK = 1 << 20
LINKED_BYTES_MIN = 16 << 20
"""Larger files of a folder are links to what was sent; smaller ones are copies, which code may write into."""
TAIL_CHARACTERS = 2000
RUN_SECONDS_MAX = 3600
END_SECONDS_MAX = 60
KEPT = ("report.html", "report.json", "result.json", "metrics.jsonl", "run.yaml", "plan.lock")
"""Of a run's folder, beside its logs: what is brought back in any case."""


class Undoable(Exception):  # noqa: N818 - a state
    """What was asked for cannot be done; the message is for the person who asked."""


def main() -> None:
    """Answer the one request that is on standard input."""
    request = json.loads(sys.stdin.buffer.readline(REQUEST_BYTES_MAX))
    try:
        answer = VERBS[request["verb"]](request)
    except Undoable as error:
        answer = {"refused": str(error)}
    except OSError as error:
        answer = {"refused": _explain(error)}
    if answer is not None:
        _say(answer)


def _say(answer: Request) -> None:
    sys.stdout.buffer.write(ANSWER + json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def _explain(error: OSError) -> str:
    where = error.filename or "a file"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        elsewhere = "set XDG_CACHE_HOME and XDG_DATA_HOME to another disk"
        return f"no room is left for {where}: make room there, or {elsewhere}"
    return f"{where}: {error.strerror or error}"


def _home(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default) / "rollout"


def _cache(*names: str) -> Path:
    return _home("XDG_CACHE_HOME", ".cache").joinpath(*names)


def _data(*names: str) -> Path:
    return _home("XDG_DATA_HOME", ".local/share").joinpath(*names)


def _object(digest: str) -> Path:
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise Undoable(f"{digest!r} is no digest")
    return _cache("sent", digest)


def _part(whole: Path) -> Path:
    return whole.with_name(f"{whole.name}.part")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            found.update(chunk)
    return found.hexdigest()


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size:
        chunk = source.read(min(CHUNK, size))
        if not chunk:
            raise Undoable("a file ended in the middle")
        target.write(chunk)
        size -= len(chunk)


def lacks(request: Request) -> Request:
    """Which files are not here, each with how many of its bytes are; and the room that is left for them."""
    _cache("sent").mkdir(parents=True, exist_ok=True)
    found = {}
    for digest, size in request["files"]:
        if _size(_object(digest)) != size:
            part = max(0, _size(_part(_object(digest))))
            found[digest] = part if part <= size else 0
    return {"lacks": found, "free": shutil.disk_usage(_cache("sent")).free}


def receive(request: Request) -> Request:
    """Take files, each from where it was cut, and keep those that are what they are called."""
    with _locked(_cache("sent.lock")):
        for digest, size, offset in request["files"]:
            part = _part(_object(digest))
            with part.open("r+b" if offset else "wb") as file:
                file.seek(offset)
                file.truncate()
                _copy(sys.stdin.buffer, file, size - offset)
                file.flush()
                os.fsync(file.fileno())
            if _digest(part) != digest:
                part.unlink()
                raise Undoable("a file was damaged on its way: start again, it is sent again")
            part.chmod(0o444)
            part.replace(_object(digest))
    return {}


def place(request: Request) -> Request:
    """A folder of files that were sent; one of that name is there already or is made whole."""
    root = {"jobs": _data, "sources": _cache}[request["kind"]](request["kind"])
    target = root / request["name"]
    if target.is_dir():
        return {"folder": str(target)}
    root.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=root, prefix="."))
    try:
        for path, digest, is_program in request["files"]:
            if path.startswith("/") or ".." in path.split("/"):
                raise Undoable(f"{path!r} leads out of its folder")
            _place_file(work / path, _object(digest), 0o755 if is_program else 0o644)
        with contextlib.suppress(OSError):  # another one was first
            work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if not target.is_dir():
        raise Undoable(f"{target} could not be made")
    return {"folder": str(target)}


def _place_file(path: Path, source: Path, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if _size(source) >= LINKED_BYTES_MIN:
        try:
            os.link(source, path)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                raise
        else:
            return
    shutil.copyfile(source, path)
    path.chmod(mode)


def install(request: Request) -> Request:
    """The environment of this name: found, or made of pins by digest as `make setup` does."""
    folder = _cache("environments", request["name"])
    python = str(folder / "venv/bin/python")
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if (folder / "complete").exists():
            return {"python": python, "is_new": False}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for words in _install_commands(request, folder, python):
            _run_logged(words, request["sources"], folder / "install.log")
        (folder / "complete").write_text(request["name"])
    return {"python": python, "is_new": True}


def _install_commands(request: Request, folder: Path, python: str) -> list[list[str]]:
    first, pins, tool = request["python"], request["pins"], folder / "uv"
    pip = [str(tool / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    uv = str(tool / "bin/uv")
    into = [uv, "pip", "install", "-q", "--python", python, "--no-deps"]
    return [
        [first, "-m", "venv", str(tool)],
        [*pip, "--require-hashes", "-r", "bootstrap.hashes.txt"],
        [uv, "venv", "-q", "--python", first, str(folder / "venv")],
        [*into, "--compile-bytecode", "--require-hashes", "-r", pins],
        [*into, "-b", pins, *(f"./{one}" for one in request["packages"])],
    ]


def _run_logged(words: list[str], folder: str, log: Path) -> None:
    done = _run(words, folder, {"UV_HTTP_TIMEOUT": "300"})
    with log.open("ab") as file:
        file.write(done.stdout + done.stderr)
    if done.returncode:
        said, what = _tail(log.read_bytes()), " ".join(words[:4])
        raise Undoable(f"{what} ended with {done.returncode}: {said}\nthe whole log: {log}")


def has_rollout(request: Request) -> Request:
    """Whether an interpreter that a person has named has rollout."""
    python = request["python"]
    try:
        _python(python, ["-c", "import rollout.cli.main"])
    except OSError as error:
        raise Undoable(f"--remote-python: {python} cannot be started: {error.strerror}") from error
    except Undoable as error:
        raise Undoable(f"--remote-python: {python} has no rollout: {error}") from error
    return {}


def doctor(request: Request) -> Request:
    """What `rollout doctor` finds."""
    done = _run([request["python"], "-m", "rollout", "doctor", "--output", "json"])
    try:
        return {"findings": json.loads(done.stdout)}
    except ValueError as error:
        raise Undoable(f"rollout doctor failed there: {_tail(done.stderr)}") from error


def start(request: Request) -> Request:
    """Start a run in the background once: asked again with the same token, tell what came of it then."""
    record = _data("starts", f"{request['token']}.json")
    with _locked(record.with_suffix(".lock")):
        if record.exists():
            return json.loads(record.read_text())
        answer = _start(request)
        record.with_suffix(".new").write_text(json.dumps(answer))
        record.with_suffix(".new").replace(record)
    return answer


def _start(request: Request) -> Request:
    words = [request["python"], "-m", "rollout", "run", "-f", "run.yaml", "--detach"]
    words += ["--output", "json", *request["options"]]
    done = _run(words, request["folder"], request["secrets"])
    said = _tail(done.stderr)
    if done.returncode:
        return {"exit_code": done.returncode, "said": said}
    told = json.loads(done.stdout)
    _data("started").mkdir(parents=True, exist_ok=True)
    record = {"python": request["python"], "pid": told["pid"]}
    _data("started", f"{told['run']}.json").write_text(json.dumps(record))
    return {"exit_code": 0, "said": said, "run": told["run"]}


def _started() -> dict[str, Path]:
    """What was started here for somebody far away: name of the run, and the record of its interpreter, oldest first."""
    found = sorted(_data("started").glob("*.json"), key=lambda one: one.stat().st_mtime)
    return {one.stem: one for one in found}


def _find(run: str | None) -> tuple[str, dict[str, Any]]:
    """A run by its name, with or without its number, and its record; None: the newest."""
    known = _started()
    named = [one for one in known if run in (None, one, one.rpartition("-")[0])]
    if not named:
        there = ", ".join([*known][-5:]) or "none"
        raise Undoable(f"this user has sent no run {run or ''!r} to this host (there: {there})")
    name = run if run in known else named[-1]
    return str(name), json.loads(known[str(name)].read_text())


def command(request: Request) -> None:
    """Become `rollout` itself, with one stream for all that it says."""
    run, record = _find(request["run"])
    python = record["python"]
    _say({"run": run})
    os.dup2(1, 2)
    words = [run if one is None else one for one in request["words"]]
    os.execve(python, [python, "-m", "rollout", *words], _settings({}))  # noqa: S606


def results(request: Request) -> Request:
    """Files of a run to be brought back: report, records of its end, logs, and what else was asked for."""
    run, record = _find(request["run"])
    _wait_for(record["pid"])
    folder = _data("runs", run)
    logs = sorted(f"logs/{one.name}" for one in folder.glob("logs/*.log"))
    files = [(one, folder / one) for one in (*KEPT, *logs) if (folder / one).is_file()]
    for what in request["bring"]:
        files += EXPORTS[what](run, record["python"])
    rows = [[name, str(path), _size(path), _digest(path)] for name, path in files]
    return {"run": run, "files": rows}


def _wait_for(pid: int) -> None:
    """Until a supervisor has ended: its report is the last that it writes. A run that is at work is not waited out."""
    deadline = time.monotonic() + END_SECONDS_MAX
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
            time.sleep(0.1)


def _export_snapshot(run: str, python: str) -> list[tuple[str, Path]]:
    made = json.loads(_rollout(python, ["snapshot", "create", run, "--output", "json"]))
    target = _data("exports", run, f"{made['id'].rpartition(':')[2]}.snapshot")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _rollout(python, ["snapshot", "export", made["id"], "--to", str(target)])
    return [(target.name, target)]


def _export_model(run: str, python: str) -> list[tuple[str, Path]]:
    target = _data("exports", run, "model")
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        _rollout(python, ["model", "export", run, "--to", str(target)])
    found = sorted(one for one in target.rglob("*") if one.is_file())
    return [(f"model/{one.relative_to(target)}", one) for one in found]


EXPORTS = {"snapshot": _export_snapshot, "model": _export_model}


def _rollout(python: str, words: list[str]) -> bytes:
    return _python(python, ["-m", "rollout", *words])


def _python(python: str, words: list[str]) -> bytes:
    """What it prints; refused with its last words where it fails."""
    done = _run([python, *words])
    if done.returncode:
        raise Undoable(_tail(done.stderr))
    return done.stdout


def _run(
    words: list[str], folder: str | None = None, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        words,
        cwd=folder,
        env=_settings(more or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )


def _settings(more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "ROLLOUT_HOME": str(_data("runs")), **more}


def _tail(words: bytes) -> str:
    return words.decode(errors="replace")[-TAIL_CHARACTERS:].strip()


def read(request: Request) -> None:
    """The bytes of files that ``results`` has named, each from an offset on, after one another."""
    root = _data().resolve()
    for path, _, _ in request["files"]:
        if root not in Path(path).resolve().parents:
            raise Undoable(f"{path} is no file of a run")
    _say({})
    try:
        for path, size, offset in request["files"]:
            with Path(path).open("rb") as file:
                file.seek(offset)
                _copy(file, sys.stdout.buffer, size - offset)
        sys.stdout.buffer.flush()
    except (Undoable, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(3)  # too few bytes: whoever asked sees it


VERBS: dict[str, Callable[[Request], Request | None]] = {
    one.__name__: one
    for one in (lacks, receive, place, install, has_rollout, doctor, start, command, results, read)
}

if __name__ == "__main__":
    main()
