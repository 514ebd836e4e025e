"""A web server of files at https, with a certificate that ``SSL_CERT_FILE`` makes known."""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from loopback import serving


@dataclass
class WebServer:
    """``files`` by path; ``leads`` are redirects. ``breaks``: so many answers end in the middle."""

    url: str = ""
    certificate: Path = Path()
    files: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    leads: dict[str, str] = field(default_factory=dict)
    gives_ranges: bool = True
    breaks: int = 0
    asked: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    server_of: WebServer

    def do_GET(self):
        web, path = self.server_of, self.path.partition("?")[0]
        span = self.headers.get("Range", "")
        web.asked.append(span)
        if path in web.leads:
            self._head(302, {"Location": web.leads[path], "Content-Length": "0"})
            return
        if path not in web.files:
            self._head(404, {"Content-Length": "0"})
            return
        data, tag = web.files[path], {"ETag": web.tags.get(path, '"1"')}
        if span and web.gives_ranges:
            first, last = (int(part) for part in span.removeprefix("bytes=").split("-"))
            piece = data[first : last + 1]
            where = f"bytes {first}-{first + len(piece) - 1}/{len(data)}"
            self._head(206, {"Content-Length": str(len(piece)), "Content-Range": where, **tag})
        else:
            piece = data
            self._head(200, {"Content-Length": str(len(data)), **tag})
        if web.breaks and len(piece) > 1:
            web.breaks -= 1
            piece = piece[: len(piece) // 2]
        self.wfile.write(piece)

    def _head(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def web_server(folder: Path):
    web = WebServer(certificate=_certify(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_of": web}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(web.certificate, folder / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    web.url = f"https://127.0.0.1:{server.server_port}"
    with serving(server):
        yield web


def _certify(folder: Path) -> Path:
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.NameAttribute(NameOID.COMMON_NAME, "x"),
    )
    now, subject = datetime.now(UTC), x509.Name([name])
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(private)
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return folder / "cert.pem"
