"""What a worker shows the coordinator: its token, read when it is needed, because files rotate.

A token of the run's secret is made from it and a role's name; one role's token tells nothing about another's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from rollout.errors import CoordinatorError
from rollout.protocol.messages import Role
from rollout_api.worker import WorkerOrder

Credential = Callable[[], str]
"""The token to send now. Raises CoordinatorError when there is none."""


def open_credential(config: WorkerOrder, role: Role) -> Credential:
    """From the run's secret, or from the file of this process's own account. Raises CoordinatorError."""
    file = Path(config.layout.token_file)
    if config.authentication is not None:
        return lambda: read_account_token(file)
    token = read_token(file, role)
    return lambda: token


def read_account_token(file: Path) -> str:
    """The token that the kubelet has put there last. Raises CoordinatorError, never with its content."""
    try:
        token = file.read_text().strip()
    except OSError as error:
        raise CoordinatorError(f"cannot read the token file {file}: {error.strerror}") from error
    if not token or not token.isascii() or not token.isprintable():
        raise CoordinatorError(f"the token file {file} holds no token")
    return token


def token_for(secret: str, role: Role) -> str:
    """The bearer token of ``role``: a keyed hash, so one role's token does not give another's."""
    key = blake3(secret.strip().encode()).digest()
    return blake3(f"rollout/{role}".encode(), key=key).hexdigest()


def read_token(secret_file: Path, role: Role) -> str:
    """The role's token from the run's secret file. Raises CoordinatorError when it is not there."""
    try:
        return token_for(secret_file.read_text(), role)
    except OSError as error:
        raise CoordinatorError(
            f"cannot read the run's secret file {secret_file}: {error}"
        ) from error
