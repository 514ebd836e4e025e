"""What a worker shows the coordinator: its token, read when it is needed, because files rotate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rollout.errors import CoordinatorError
from rollout.protocol.messages import Role
from rollout.protocol.routes import read_token
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
