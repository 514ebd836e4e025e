"""TLS between the processes of a run: who presents a certificate, who checks it, and what may go without.

Certificates are files that somebody else rotates. Both sides look whether a file has changed before they
use it, so that neither is ever restarted for it. Plain HTTP carries tokens in the clear: it stays on
loopback.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import threading
from pathlib import Path
from urllib.parse import urlsplit

from rollout.errors import CoordinatorError, SpecError
from rollout_api.worker import Layout

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
"""How often the server looks at its files."""

Stamp = tuple[int, int, int]


def is_loopback(host: str) -> bool:
    """Whether what is sent to this host stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_safe(url: str) -> None:
    """Raise CoordinatorError for an address that a token must not be sent to."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise CoordinatorError(f"expected https://host:port as the coordinator's address: {url}")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise CoordinatorError(
            f"{url} would carry this process's token in the clear: use https:// with layout.caFile,"
            " or an address on loopback"
        )


def stamp_of(*files: Path) -> tuple[Stamp, ...]:
    """What changes when a file is written or replaced. Raises OSError."""
    found = [file.stat() for file in files]
    return tuple((one.st_mtime_ns, one.st_ino, one.st_size) for one in found)


class Trust:
    """The certificates that a coordinator may be signed by, as one file; thread-safe."""

    def __init__(self, ca_file: Path) -> None:
        self._file = ca_file
        self._lock = threading.Lock()
        self._stamp: tuple[Stamp, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """For new connections; another object after the file has changed.

        Raises CoordinatorError when there is no usable file and never was.
        """
        with self._lock:
            try:
                self._refresh()
            except (OSError, ssl.SSLError) as error:
                if self._context is None:
                    raise CoordinatorError(
                        f"layout.caFile {self._file} holds no certificates: {error}"
                    ) from error
                log.warning("certificates stay as they were file=%s reason=%s", self._file, error)
            assert self._context is not None
            return self._context

    def _refresh(self) -> None:
        stamp = stamp_of(self._file)
        if stamp == self._stamp:
            return
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.load_verify_locations(self._file)
        self._context, self._stamp = made, stamp


def open_trust(layout: Layout) -> Trust | None:
    """What this run's coordinator is known by; None for plain HTTP."""
    return None if layout.ca_file is None else Trust(Path(layout.ca_file))


class Certificate:
    """A server's certificate and key; ``context`` presents the newest pair that fits.

    Each handshake takes one whole pair: one that changed under it would be a certificate without its key.
    """

    def __init__(self, certificate_file: Path, key_file: Path) -> None:
        self._files = (certificate_file, key_file)
        self.context = _server_context()
        try:
            self._stamp = stamp_of(*self._files)
            self._newest = self._load()
        except (OSError, ssl.SSLError) as error:
            raise SpecError(
                f"certificate {certificate_file} and key {key_file} are no pair to serve with: {error}"
            ) from error
        self.context.sni_callback = self._choose

    def _load(self) -> ssl.SSLContext:
        made = _server_context()
        made.load_cert_chain(*self._files)
        return made

    def _choose(self, handshake: ssl.SSLObject, *_: object) -> None:
        handshake.context = self._newest

    def refresh(self) -> bool:
        """Take up changed files; False when there is nothing new, or nothing usable yet."""
        try:
            stamp = stamp_of(*self._files)
            if stamp == self._stamp:
                return False
            self._newest = self._load()
        except (OSError, ssl.SSLError) as error:
            log.warning("the certificate stays as it was reason=%s", error)
            return False
        self._stamp = stamp
        log.info("certificate read again file=%s", self._files[0])
        return True

    async def watch(self) -> None:
        """Refresh for ever."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await asyncio.to_thread(self.refresh)


def _server_context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    return made


def open_certificate(layout: Layout, host: str) -> Certificate | None:
    """What the coordinator serves with; None for plain HTTP. Raises SpecError where that is unsafe."""
    if layout.certificate_file is not None and layout.key_file is not None:
        return Certificate(Path(layout.certificate_file), Path(layout.key_file))
    if layout.coordinator_url.startswith("https:"):
        raise SpecError(
            f"layout.coordinatorUrl is {layout.coordinator_url}: set layout.certificateFile and keyFile"
        )
    if not is_loopback(host):
        raise SpecError(
            f"the coordinator would listen on {host} without TLS, and tokens would travel in the clear:"
            " set layout.certificateFile, keyFile and caFile, or listen on 127.0.0.1"
        )
    return None
