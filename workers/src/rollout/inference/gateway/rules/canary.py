"""Which requests a candidate answers while it is watched: a share of the sessions, each on one side for as long as it lasts. Pure."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from rollout.errors import SpecError

ORDER_BYTES_MAX = 1 << 16
_PARTS = 10_000


class CanaryOrder(msgspec.Struct, frozen=True, kw_only=True):
    """``url`` of the candidate's servers, ``http://host:port``; ``percent`` of sessions; ``salt`` draws others for another candidate."""

    url: str = ""
    percent: int = 0
    salt: str = ""

    def takes(self, session: bytes) -> bool:
        """Whether the candidate answers this session."""
        if self.percent <= 0:
            return False
        key = hashlib.blake2b(self.salt.encode(), digest_size=16).digest()
        drawn = hashlib.blake2b(session, key=key, digest_size=8).digest()
        return int.from_bytes(drawn, "big") % _PARTS < self.percent * (_PARTS // 100)


NOBODY = CanaryOrder()


def read_canary(path: Path) -> CanaryOrder:
    """The order in a file. Raises SpecError for one that is missing or broken."""
    try:
        with path.open("rb") as file:
            order = msgspec.json.decode(file.read(ORDER_BYTES_MAX), type=CanaryOrder)
    except (OSError, msgspec.MsgspecError) as error:
        raise SpecError(f"{path} is no order of a canary: {error}") from error
    parts = urlsplit(order.url)
    if order.percent and (parts.scheme != "http" or not parts.hostname or parts.path):
        raise SpecError(f"{path}: url {order.url[:200]!r}: expected http://host:port")
    if not 0 <= order.percent <= 100:
        raise SpecError(f"{path}: percent {order.percent}: expected 0 to 100")
    return order
