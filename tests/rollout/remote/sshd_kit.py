"""OpenSSH's server as a process of a test: a user with a home, an environment and a disk of its own, on this machine.

Where there is none, Debian's package is unpacked into the user's cache folder, and nothing is installed. It runs in a mount
namespace of its own, in which /etc/passwd and /run are the test's: that needs root.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
import pytest
from warm import outside_of_tests, settings

from cluster.control.ports import find_free_port
from cluster.paths import build_cache, locked
from rollout.remote.address import HostAddress
from rollout.remote.host import RemoteHost
from rollout.remote.ssh import Ssh

PACKAGE = "openssh-server"
WAIT_SECONDS = 60.0
PLACES = ("/usr/sbin/sshd", "/usr/local/sbin/sshd")
HANDED_ON = ("PYTHONPATH", "UV_", "PIP_", "SSL_", "OMP_", "MKL_", "HF_", "TOKENIZERS_", "ROLLOUT_T")
"""Of this test's environment, what a login at the host has, too."""
SHELL_TOOLS = ("sh", "uname", "df", "awk", "sed", "dirname", "ls", "wc", "head", "cat")


@dataclass(frozen=True)
class SshdProgram:
    """Where it lies, and its libraries where the machine has none."""

    path: str
    libraries: str = ""


def why_not_here() -> str:
    """Why no sshd can be started by this user; empty where one can."""
    if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "cannot run here: there is no ssh client"
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "cannot run here: a server that lets a user in needs root, and a mount namespace"
    if not any(Path(one).exists() for one in PLACES) and shutil.which("dpkg-deb") is None:
        return f"cannot run here: there is no sshd, and no Debian to take {PACKAGE} from"
    return ""


def find_sshd() -> SshdProgram:
    """The machine's, else Debian's."""
    for one in PLACES:
        if Path(one).exists():
            return SshdProgram(one)
    root = build_cache() / PACKAGE
    with locked(PACKAGE):
        if not (root / "usr/sbin/sshd").exists():
            _unpack(root)
    return SshdProgram(str(root / "usr/sbin/sshd"), str(root / "usr/lib/x86_64-linux-gnu"))


def _unpack(root: Path) -> None:
    with tempfile.TemporaryDirectory(dir=build_cache()) as name:
        folder = Path(name)
        (folder / "partial").mkdir()
        get = ["apt-get", "-qq", "-y", "--no-install-recommends", "--download-only"]
        fetch = [*get, "-o", f"Dir::Cache::archives={folder}", "install", PACKAGE]
        if _run(fetch) != 0 and (_run(["apt-get", "-qq", "update"]) or _run(fetch)):
            pytest.skip(f"cannot run here: apt-get gives no {PACKAGE}")
        for one in folder.glob("*.deb"):
            assert _run(["dpkg-deb", "-x", str(one), str(folder / "root")]) == 0
        shutil.rmtree(root, ignore_errors=True)
        (folder / "root").rename(root)


def _run(words: list[str]) -> int:
    return subprocess.run(words, capture_output=True, timeout=300).returncode


class Sshd:
    """A running server. ``home`` is the user's there; ``client`` the ssh client's configuration, which knows the host as `far`."""

    def __init__(self, program: SshdProgram, folder: Path) -> None:
        folder.mkdir(mode=0o755)
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir()
        self.client, self.known = folder / "client.conf", folder / "known_hosts"
        self.port = find_free_port()
        self._program, self._process = program, None
        self.environment = {
            name: value
            for name, value in {**outside_of_tests(), **settings()}.items()
            if name.startswith(HANDED_ON)
        }
        self.path = "/usr/local/bin:/usr/bin:/bin"
        for key in ("host", "user"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(make, check=True, timeout=60)

    def __enter__(self) -> Self:
        self.know()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._runs():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself meanwhile
                process.kill()
        self.stop()

    @property
    def data(self) -> Path:
        return self.home / ".local/share/rollout"

    @property
    def cache(self) -> Path:
        return self.home / ".cache/rollout"

    def host(self, **changes: object) -> RemoteHost:
        """What our code speaks to it by."""
        ssh = Ssh(address=HostAddress(host="far"), config=str(self.client))
        given = {"ssh": ssh, "say": lambda _: None, "patience_seconds": 120.0, **changes}
        return RemoteHost(**given)

    def know(self, key: str = "host") -> None:
        """The client knows the host by this key."""
        words = (self.folder / f"{key}.pub").read_text().split()[:2]
        self.known.write_text(f"[127.0.0.1]:{self.port} {' '.join(words)}\n")
        self.client.write_text(
            f"Host far\n HostName 127.0.0.1\n Port {self.port}\n User root\n IdentitiesOnly yes\n"
            f" IdentityFile {self.folder / 'user'}\n UserKnownHostsFile {self.known}\n"
            " GlobalKnownHostsFile /dev/null\n"
        )

    def start(self) -> None:
        """Also again, with another environment."""
        self._write()
        sshd = [self._program.path, "-D", "-e", "-f", str(self.folder / "sshd.conf")]
        binds = " && ".join(
            f"mount --bind {shlex.quote(str(self.folder / name))} /etc/{name}"
            for name in ("passwd", "shadow")
        )
        prepare = f"{binds} && mount -t tmpfs tmpfs /run && mkdir /run/sshd"
        script = f"{prepare} && exec {shlex.join(sshd)}"
        libraries = {"LD_LIBRARY_PATH": self._program.libraries} if self._program.libraries else {}
        with (self.folder / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
                env={"PATH": os.environ["PATH"], **libraries},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait()

    def stop(self) -> None:
        """With every connection; what was started in the background goes on."""
        if self._process is None:
            return
        self.cut()
        self._process.terminate()
        self._process.wait(30)
        self._process = None

    def cut(self) -> int:
        """End every connection that there is; how many there were."""
        found = psutil.Process(self._process.pid).children()
        for one in found:
            one.send_signal(signal.SIGKILL)
        return len(found)

    def without_python(self) -> None:
        """A login finds a shell's tools, and no Python."""
        tools = self.folder / "tools"
        tools.mkdir()
        for one in SHELL_TOOLS:
            (tools / one).symlink_to(shutil.which(one))
        self.path = str(tools)
        self.stop()
        self.start()

    def with_environment(self, changes: Mapping[str, str]) -> None:
        self.environment |= changes
        self.stop()
        self.start()

    def said(self) -> str:
        return (self.folder / "sshd.log").read_text()

    def _write(self) -> None:
        files = {"passwd": Path("/etc/passwd").read_text(), "shadow": "root:*:19000:0:99999:7:::\n"}
        others = [
            one for one in files["passwd"].splitlines() if one.split(":")[0] not in {"root", "sshd"}
        ]
        ours = [
            f"root:x:0:0:root:{self.home}:/bin/sh",
            "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin",
        ]
        files["passwd"] = "\n".join([*ours, *others, ""])
        for name, text in files.items():
            (self.folder / name).write_text(text)
        given = {**self.environment, "PATH": self.path}
        quoted = " ".join(f'"{name}={value}"' for name, value in given.items() if '"' not in value)
        (self.folder / "sshd.conf").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.folder / 'host'}\n"
            f"AuthorizedKeysFile {self.folder / 'user.pub'}\nPermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\n"
            f"PidFile none\nMaxStartups 50\nSetEnv {quoted}\n"
        )

    def _wait(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            assert self._process.poll() is None, self.said()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def _runs(self) -> list[psutil.Process]:
        """Whatever was started of this home."""
        mark, found = str(self.folder), []
        for one in psutil.process_iter(["cmdline", "cwd"]):
            words = " ".join(one.info["cmdline"] or ())
            at = one.info["cwd"] or ""
            if (mark in words or at.startswith(str(self.home))) and one.pid != os.getpid():
                found.append(one)
        return [one for one in found if one.pid != (self._process.pid if self._process else 0)]
