"""The server's certificate, read again when its files change, without a closed port in between.

One ``SSLContext`` lives as long as the process: a chain loaded into it serves the handshakes that
come after, and connections that are open stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)
POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """Where the chain and the key lie (PEM), as a ``kubernetes.io/tls`` Secret is mounted."""

    certificate: Path
    key: Path


class Certificate:
    """Owns the TLS context and knows whether it can serve."""

    def __init__(self, files: KeyPair) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.num_loads = 0
        self._files = files
        self._loaded: tuple[bytes, bytes] | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether a handshake can succeed."""
        return self._loaded is not None

    def refresh(self) -> bool:
        """Load the files when they hold something new. False while they are absent or do not match.

        What was loaded before keeps serving: a Secret's two files may be seen in the middle of a change.
        """
        try:
            content = self._files.certificate.read_bytes(), self._files.key.read_bytes()
            if content == self._loaded:
                return True
            _load(self.context, *content)
        except (OSError, ssl.SSLError) as error:
            log.warning("certificate not loaded file=%s error=%s", self._files.certificate, error)
            return False
        self._loaded = content
        self.num_loads += 1
        log.info("certificate loaded file=%s loads=%d", self._files.certificate, self.num_loads)
        return True

    async def wait_loaded(self, *, patience_seconds: float) -> None:
        """Wait for files that can be served. Raises TimeoutError."""
        deadline = time.monotonic() + patience_seconds
        while not self.refresh():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no usable certificate at {self._files.certificate} within"
                    f" {patience_seconds:g} s; does its Secret hold tls.crt and tls.key?"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def follow(self, *, stopped: Callable[[], bool] = lambda: False) -> None:
        """Look at the files again and again."""
        while not stopped():
            await asyncio.sleep(POLL_SECONDS)
            self.refresh()


def _load(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """Load a pair that fits. One that does not leaves a context without any: another one tries first."""
    with tempfile.NamedTemporaryFile() as both:
        both.write(key + b"\n" + chain)
        both.flush()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(both.name)
        context.load_cert_chain(both.name)
