"""Finds what `docker login`, `buildah login` or a credential helper keeps for a registry; nothing is asked or kept here."""

from __future__ import annotations

import base64
import binascii
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from release.errors import RegistryError

FILE_BYTES_MAX = 1 << 20
HELPER_SECONDS = 60.0
HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Who pushes."""

    user: str
    password: str = field(repr=False)


def find_credentials(host: str, environment: Mapping[str, str]) -> Credentials | None:
    """What is kept for a host; None: nothing, and the registry may still take what nobody vouches for.

    Raises:
        RegistryError: a file or a helper that cannot be read.
    """
    path = _config_path(environment)
    if not path.is_file():
        return None
    config = _read(path)
    helper = _mapping(config.get("credHelpers")).get(host)
    said = _mapping(_mapping(config.get("auths")).get(host)).get("auth")
    if not helper and said:
        return _decode(said, f"{path}: auths of {host}")
    helper = helper or config.get("credsStore")
    return _ask(helper, host, environment) if helper else None


def _mapping(said: object) -> Mapping[str, Any]:
    return said if isinstance(said, dict) else {}


def _config_path(environment: Mapping[str, str]) -> Path:
    if named := environment.get("REGISTRY_AUTH_FILE"):
        return Path(named)
    folder = environment.get("DOCKER_CONFIG") or f"{environment.get('HOME', '/')}/.docker"
    return Path(folder) / "config.json"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as opened:
            config = json.loads(opened.read(FILE_BYTES_MAX))
    except (OSError, ValueError, RecursionError) as error:
        raise RegistryError(f"{path}: no credentials that can be read: {error}") from error
    if not isinstance(config, dict):
        raise RegistryError(f"{path}: expected a JSON object")
    return config


def _decode(text: object, what: str) -> Credentials:
    try:
        user, found, password = base64.b64decode(str(text), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise RegistryError(f"{what}: not base64 of user:password") from error
    if not found:
        raise RegistryError(f"{what}: not base64 of user:password")
    return Credentials(user=user, password=password)


def _ask(helper: object, host: str, environment: Mapping[str, str]) -> Credentials | None:
    if not isinstance(helper, str) or not HELPER.fullmatch(helper):
        raise RegistryError(f"credential helper {helper!r:.80}: no name of a program")
    command = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [command, "get"],
            input=host,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=HELPER_SECONDS,
            check=False,
        )
        if done.returncode:
            # what it printed may hold a part of a secret
            raise RegistryError(f"{command} get: exit status {done.returncode} for {host}")
        answer = json.loads(done.stdout)
        return Credentials(user=answer["Username"], password=answer["Secret"])
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise RegistryError(f"{command} get: {type(error).__name__} for {host}") from error
