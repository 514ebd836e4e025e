"""The system's ssh client, started with options that weaken nothing: the host's key must be known, nobody is asked for words.

Keys, agents, jump hosts and names of hosts are those of the user's own configuration (``ROLLOUT_SSH_CONFIG`` names another
file). Every silence ends: what does not answer for some 30 seconds is a connection that is lost.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from rollout.errors import ConnectionLost, HostError, HostUnreachable
from rollout.remote.address import HostAddress

CONFIG = "ROLLOUT_SSH_CONFIG"
PROGRAM = "ssh"
OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "VerifyHostKeyDNS": "no",
    "NoHostAuthenticationForLocalhost": "no",
    "ConnectTimeout": "15",
    "ServerAliveInterval": "10",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "RequestTTY": "no",
    "ControlMaster": "no",
    "LogLevel": "ERROR",
}
FAILED = 255
"""What the client exits with when it is itself what failed."""
MISSING = 127
WORDS_MAX = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh:
    """How a host is reached. ``config``: a file for the client in place of the user's own."""

    address: HostAddress
    config: str | None = None

    def argv(self, command: str) -> list[str]:
        """The client's words for one command of a POSIX shell."""
        words = [PROGRAM]
        if self.config is not None:
            words += ["-F", self.config]
        for name, value in OPTIONS.items():
            words += ["-o", f"{name}={value}"]
        if self.address.port is not None:
            words += ["-p", str(self.address.port)]
        if self.address.user is not None:
            words += ["-l", self.address.user]
        return [*words, "--", self.address.host, f"sh -c {shlex.quote(command)}"]

    def start(self, command: str, *, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        """The command at the host, with its input and output as pipes. Raises HostError without a client."""
        try:
            return subprocess.Popen(
                self.argv(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise HostError(
                f"--on {self.address}: there is no ssh on this machine; install OpenSSH's client"
            ) from error


def open_ssh(address: HostAddress, environment: Mapping[str, str]) -> Ssh:
    """How this user reaches an address."""
    return Ssh(address=address, config=environment.get(CONFIG) or None)


def explain(address: HostAddress, words: str) -> HostError:
    """What it means that the client itself failed, by its own last words. HostUnreachable and ConnectionLost may pass."""
    whole = " ".join(words.split())
    said = whole[-WORDS_MAX:]
    for sign, (kind, meaning) in _SIGNS.items():
        if sign in whole:
            return kind(f"{address}: {meaning.format(host=address.host)} (ssh: {said})")
    if any(sign in said for sign in _NOT_REACHED):
        return HostUnreachable(f"{address} cannot be reached (ssh: {said})")
    return ConnectionLost(f"{address}: the connection was lost (ssh: {said or 'said nothing'})")


_SIGNS: dict[str, tuple[type[HostError], str]] = {
    "IDENTIFICATION HAS CHANGED": (
        HostError,
        "its key is not the known one: it was installed anew, or somebody stands between; ask its owner first",
    ),
    "host key is known": (
        HostError,
        "its key is not known: connect once by hand (ssh {host}), and compare the fingerprint with its owner's",
    ),
    "Host key verification failed": (
        HostError,
        "its key could not be verified: connect once by hand (ssh {host}), and compare the fingerprint",
    ),
    "Permission denied": (
        HostError,
        "it refuses this user's keys: no password is asked for; add your public key there, or load it (ssh-add)",
    ),
    "Too many authentication failures": (
        HostError,
        "it refuses after too many keys: name one in ssh's configuration (IdentityFile, IdentitiesOnly yes)",
    ),
    "Bad configuration option": (HostError, "ssh's configuration is wrong"),
    "Can't open user config file": (HostError, "ROLLOUT_SSH_CONFIG names a file that is not there"),
    "Could not resolve hostname": (
        HostUnreachable,
        "there is no such host: check the name, or ssh's configuration",
    ),
}
_NOT_REACHED = (
    "Connection refused",
    "Connection timed out",
    "Operation timed out",
    "No route to host",
    "Network is unreachable",
    "Connection closed by",
    "Connection reset by",
    "kex_exchange_identification",
    "banner exchange",
)
