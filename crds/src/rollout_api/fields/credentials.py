"""Which variables hold credentials, by their names: refused in plain text, masked in what is kept of a process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_ENDINGS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "DSN", "CREDENTIAL", "CREDENTIALS")
COORDINATOR_SECRETS = frozenset(
    {
        *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY"),
        *("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    }
)
"""Of a run's variables from Secrets, what a coordinator's container gets: credentials that our own code hands to a hub, a tracker or a
bucket. None of them names an address, a file or a command."""
CHARACTERS_MIN = 6
"""A shorter value is no credential, and stands in too many places."""
_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)")


def names_credential(name: str) -> bool:
    """Whether a variable of this name is taken for a credential."""
    return name.upper().rstrip("_0123456789").endswith(_ENDINGS)


def mask(text: str, environment: Mapping[str, str], also: Iterable[str] = ()) -> str:
    """The text with the values of credentials replaced by the names of their variables.

    Credentials are variables that are named like one, and those of ``also``, whatever their names; and
    whatever stands before the host of an address. A value of several lines is masked line by line.
    """
    wanted = set(also)
    found = {
        part: name
        for name, value in environment.items()
        if name in wanted or names_credential(name)
        for part in (value, *value.splitlines())
        if len(part.strip()) >= CHARACTERS_MIN
    }
    for value in sorted(found, key=len, reverse=True):
        text = text.replace(value, f"<{found[value]}>")
    return _IN_ADDRESS.sub("<credentials>", text)
