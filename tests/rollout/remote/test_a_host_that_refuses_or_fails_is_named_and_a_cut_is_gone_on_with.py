"""A real sshd on loopback: what it refuses, what it lacks, and what becomes of a request whose connection is cut."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from rollout.errors import ConnectionLost, HostError, HostUnreachable
from rollout.remote.looking import LOOK
from rollout.remote.parcel import Parcel, SentFile, hash_file, parcel_of
from rollout.remote.running import command_there, look_at_host, start_there
from rollout.remote.sending import place_parcel

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
MIB = 1 << 20
WAIT_SECONDS = 60.0


def parcel(folder: Path, size: int) -> Parcel:
    """One file that nothing else has."""
    file = folder / "data.bin"
    file.write_bytes(os.urandom(size))
    digest, found = hash_file(file)
    return parcel_of([SentFile(path="files/0/data.bin", source=file, digest=digest, size=found)])


def wait_for(condition):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_host_whose_key_is_unknown_is_given_nothing(far):
    far.known.write_text("")
    with pytest.raises(HostError, match="connect once by hand"):
        far.host().look(LOOK)
    assert far.known.read_text() == ""


def test_a_host_with_another_key_than_the_known_one_is_given_nothing(far):
    far.know("user")
    with pytest.raises(HostError, match="not the known one"):
        far.host().look(LOOK)


def test_a_host_that_does_not_let_the_user_in_is_not_asked_again(far):
    (far.folder / "user.pub").write_text("")

    def refused():
        return far.said().count("Connection closed by authenticating user root")

    with pytest.raises(HostError, match="refuses this user's keys"):
        far.host().again(lambda: far.host().ask("lacks", {"files": []}))
    wait_for(lambda: refused() > 0)
    assert refused() == 1


def test_a_host_that_is_away_is_waited_for_and_at_last_told(far):
    far.stop()
    told = []
    host = far.host(patience_seconds=2.5, say=told.append)
    with pytest.raises(HostUnreachable, match="cannot be reached"):
        host.again(lambda: host.ask("lacks", {"files": []}))
    assert 1 <= len(told) <= 3

    far.start()
    assert host.again(lambda: host.ask("lacks", {"files": []}))["lacks"] == {}


def test_a_host_without_python_is_told_in_the_doctors_words(far):
    far.without_python()

    with pytest.raises(
        HostError, match=r"Python: none: no environment can be made; install Python"
    ):
        look_at_host(far.host(), needed=0, installs=True)
    with pytest.raises(HostError, match="there is no Python"):
        far.host().ask("lacks", {"files": []})


def test_what_a_login_prints_first_is_passed_over(far):
    (far.home / ".profile").write_text("echo hello\n")
    far.with_environment({"ENV": str(far.home / ".profile")})
    host = far.host()
    assert look_at_host(host, needed=0, installs=True)[0].system == "linux"
    assert host.ask("lacks", {"files": []})["lacks"] == {}


def test_an_interpreter_without_rollout_is_named(far):
    with pytest.raises(HostError, match="--remote-python: /nowhere/python cannot be started"):
        far.host().ask("has_rollout", {"python": "/nowhere/python"})
    with pytest.raises(HostError, match="--remote-python: /bin/false has no rollout"):
        far.host().ask("has_rollout", {"python": "/bin/false"})


def test_a_second_run_sends_nothing_again(far, tmp_path):
    made = parcel(tmp_path, 2 * MIB)

    assert place_parcel(far.host(), made, "jobs") == (str(far.data / "jobs" / made.name), 2 * MIB)
    assert place_parcel(far.host(), made, "jobs")[1] == 0
    other = parcel_of([*made.files, SentFile(**{**FIELDS, "digest": hash_of(b"x"), "text": b"x"})])
    folder, sent = place_parcel(far.host(), other, "jobs")
    assert sent == 1
    assert (Path(folder) / "files/0/data.bin").read_bytes() == made.files[0].source.read_bytes()
    assert (Path(folder) / "run.yaml").read_bytes() == b"x"


FIELDS = {"path": "run.yaml", "source": Path("run.yaml"), "size": 1}


def hash_of(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def test_a_file_whose_connection_is_cut_is_sent_on_from_there(far, tmp_path):
    made = parcel(tmp_path, 8 * MIB)
    file = made.files[0]
    part = far.cache / "sent" / f"{file.digest}.part"

    def cut_in_the_middle():
        yield file.source.read_bytes()[: 3 * MIB]
        wait_for(lambda: part.exists() and part.stat().st_size >= 2 * MIB)
        far.cut()
        yield file.source.read_bytes()[3 * MIB :]

    place_parcel(far.host(), parcel_of([]), "jobs")
    with pytest.raises(ConnectionLost):
        far.host().ask("receive", {"files": [[file.digest, file.size, 0]]}, cut_in_the_middle)

    folder, sent = place_parcel(far.host(), made, "jobs")
    assert 0 < sent <= 6 * MIB
    assert (Path(folder) / file.path).read_bytes() == file.source.read_bytes()


def test_a_damaged_file_is_not_kept(far, tmp_path):
    made = parcel(tmp_path, MIB)
    file = made.files[0]
    place_parcel(far.host(), parcel_of([]), "jobs")
    with pytest.raises(HostError, match="damaged on its way"):
        far.host().ask("receive", {"files": [[file.digest, MIB, 0]]}, lambda: [bytes(MIB)])
    assert place_parcel(far.host(), made, "jobs")[1] == MIB


@pytest.fixture
def small_disk(far):
    """The host's cache folder on a disk of one MiB."""
    place = far.home / ".cache"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot run here: a small disk cannot be mounted")
    far.stop()
    far.start()  # in a mount namespace that has it
    yield place
    far.stop()
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_told_with_what_to_do_before_and_while_it_fills(far, small_disk, tmp_path):
    made = parcel(tmp_path, 2 * MIB)
    file = made.files[0]

    with pytest.raises(
        HostError, match=r"cache: .* the disk would be full; make room, or set XDG_CACHE_HOME"
    ):
        look_at_host(far.host(), needed=made.size, installs=False)
    with pytest.raises(HostError, match=r"2\.0 MiB are to be sent.*room for"):
        place_parcel(far.host(), made, "jobs")
    with pytest.raises(HostError, match="no room is left"):
        far.host().ask(
            "receive", {"files": [[file.digest, file.size, 0]]}, lambda: [file.source.read_bytes()]
        )


SCRIPT = """#!/bin/sh
echo start >> "{folder}/starts"
tr '\\0' ' ' < /proc/$PPID/cmdline >> "{folder}/seen"; echo "$*" >> "{folder}/seen"
echo "$HF_TOKEN" > "{folder}/token"
touch "{folder}/began"
while [ ! -e "{folder}/go" ]; do sleep 0.05; done
echo '{{"run": "small-1", "pid": 1}}'
"""


@pytest.fixture
def interpreter(far):
    """Stands for one that starts runs: it writes down how it was started, and waits for `go`."""
    file = far.folder / "python"
    file.write_text(SCRIPT.format(folder=far.folder))
    file.chmod(0o755)
    return file


def test_a_start_whose_connection_is_cut_is_made_once_and_secrets_are_seen_by_nobody(
    far, interpreter, tmp_path
):
    found, told = [], []
    host = far.host(say=told.append)

    def begin():
        secrets = {"HF_TOKEN": "hf_secret"}
        found.append(start_there(host, parcel(tmp_path, 10), str(interpreter), [], secrets))

    starting = threading.Thread(target=begin)
    starting.start()
    wait_for((far.folder / "began").exists)
    far.cut()
    wait_for(lambda: told)
    (far.folder / "go").touch()
    starting.join(WAIT_SECONDS)

    assert [one.run for one in found] == ["small-1"]
    assert (far.folder / "starts").read_text().count("start") == 1
    assert (far.folder / "token").read_text() == "hf_secret\n"
    assert "hf_secret" not in (far.folder / "seen").read_text()
    assert not [
        one for one in far.home.rglob("*") if one.is_file() and b"hf_secret" in one.read_bytes()
    ]


def test_what_keeps_a_run_from_beginning_is_told_with_its_exit_code(far, interpreter, tmp_path):
    interpreter.write_text("#!/bin/sh\necho 'error: no such model' >&2\nexit 2\n")
    found = start_there(far.host(), parcel(tmp_path, 10), str(interpreter), [], {})
    assert (found.exit_code, found.said) == (2, "error: no such model")


def test_a_run_that_nobody_sent_is_not_found(far):
    with pytest.raises(HostError, match=r"sent no run 'other' to this host \(there: none\)"):
        command_there(far.host(), ["attach", None], "other", lambda _: None)


def test_nothing_but_files_of_runs_is_read(far):
    place_parcel(far.host(), parcel_of([]), "jobs")
    for path in ("/etc/passwd", str(far.data / "../../../.ssh/id")):
        with pytest.raises(HostError, match="no file of a run"):
            list(far.host().read("read", {"files": [[path, 1, 0]]}))
