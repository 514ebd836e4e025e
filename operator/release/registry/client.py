"""A client of the OCI distribution API: the calls that a push makes, each bounded in bytes, seconds and tries.

A registry is not trusted: redirects are not followed, credentials go to the host they were kept for and to the token
service it names over TLS, and what it stores is compared with its digest. A library was not taken because those that
there are write a manifest anew when they send it, which changes its digest.
https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md
"""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from release import oci
from release.errors import LayoutError, RegistryError
from release.registry.credentials import Credentials, find_credentials

PLACE = re.compile(
    r"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{1,5})?)(?P<prefix>(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
)
LOOPBACK = re.compile(r"(?:127\.0\.0\.1|localhost)(?::\d+)?")
CHALLENGE = re.compile(r"([a-z]+)=\"([^\"]*)\"")
ACCEPTED = f"{oci.MANIFEST_TYPE}, {oci.INDEX_TYPE}"
TRIES_MAX = 4
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
ANSWER_BYTES_MAX = oci.DOCUMENT_BYTES_MAX
BUSY = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a registry answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True, kw_only=True)
class Registry:
    """A registry, or a part of one below a prefix."""

    host: str
    prefix: str
    http: httpx.Client
    credentials: Credentials | None = None
    sleep: Callable[[float], None] = time.sleep
    tokens: dict[str, str] = field(default_factory=dict)
    """What each repository's calls have in Authorization."""

    @classmethod
    @contextmanager
    def open(cls, place: str, environment: Mapping[str, str] = os.environ) -> Iterator[Registry]:
        """Connect to ``host[:port][/prefix]``: over TLS, but to this machine in the clear.

        Raises:
            RegistryError: no such place, or credentials that cannot be read.
        """
        found = PLACE.fullmatch(place)
        if found is None or found["host"] in {"docker.io", "index.docker.io"}:
            raise RegistryError(
                f"registry {place!r:.160}: expected HOST[:PORT][/PREFIX], not Docker Hub: "
                "a name there has no further levels, and charts/rollout needs one"
            )
        credentials = find_credentials(found["host"], environment)
        with httpx.Client(
            verify=ssl.create_default_context(), timeout=TIMEOUT, follow_redirects=False
        ) as http:
            prefix = found["prefix"].strip("/")
            yield cls(host=found["host"], prefix=prefix, http=http, credentials=credentials)

    def name(self, repository: str) -> str:
        """The repository's full name, without host."""
        return f"{self.prefix}/{repository}" if self.prefix else repository

    def has_blob(self, repository: str, descriptor: oci.Descriptor) -> bool:
        """Whether the registry has these bytes; some answer by where they are."""
        answer = self._call("HEAD", repository, f"blobs/{descriptor.digest}")
        if answer.status == 404:
            return False
        self._expect(answer, repository, {200, 301, 302, 307, 308})
        return True

    def put_blob(self, repository: str, path: Path, descriptor: oci.Descriptor) -> None:
        """Upload a file in one piece.

        Raises:
            RegistryError: the registry does not take it.
        """
        self._repeat(lambda: self._upload(repository, path, descriptor), repository)

    def _upload(self, repository: str, path: Path, descriptor: oci.Descriptor) -> Answer:
        begun = self._call("POST", repository, "blobs/uploads/")
        self._expect(begun, repository, {202})
        target = self._join(begun.headers.get("location", ""))
        headers = {
            "content-type": "application/octet-stream",
            "content-length": str(descriptor.size_bytes),
        }
        if self._is_ours(target):
            headers |= self._authorization(repository)
        with path.open("rb") as data:
            where = target.copy_merge_params({"digest": descriptor.digest})
            answer = self._send("PUT", where, headers, iter(lambda: data.read(1 << 20), b""))
        if answer.status not in BUSY:
            self._expect(answer, repository, {201})
        return answer

    def put_manifest(
        self, repository: str, reference: str, data: bytes, media_type: str
    ) -> Mapping[str, str]:
        """Store a manifest under a tag or its digest; headers of the answer.

        Raises:
            RegistryError: the registry does not take it.
        """
        answer = self._call("PUT", repository, f"manifests/{reference}", data, media_type)
        self._expect(answer, repository, {201})
        return answer.headers

    def get_manifest(self, repository: str, reference: str) -> bytes | None:
        """The bytes of a manifest; None where there is none."""
        answer = self._call("GET", repository, f"manifests/{reference}")
        if answer.status == 404:
            return None
        self._expect(answer, repository, {200})
        return answer.body

    def _call(
        self, method: str, repository: str, path: str, data: bytes = b"", media_type: str = ""
    ) -> Answer:
        url = httpx.URL(f"{self._scheme()}://{self.host}/v2/{self.name(repository)}/{path}")
        headers = {"content-type": media_type} if media_type else {"accept": ACCEPTED}

        def once() -> Answer:
            return self._send(method, url, headers | self._authorization(repository), data)

        def known() -> Answer:
            answer = once()
            if answer.status == 401 and repository not in self.tokens:
                self.tokens[repository] = self._ask(repository, answer)
                answer = once()
            return answer

        return self._repeat(known, repository)

    def _repeat(self, call: Callable[[], Answer], repository: str) -> Answer:
        reason = ""
        for tried in range(TRIES_MAX):
            try:
                answer = call()
                if answer.status not in BUSY:
                    return answer
                reason = f"status {answer.status}"
            except httpx.TransportError as error:
                reason = f"{type(error).__name__} {error}"
            if tried + 1 < TRIES_MAX:
                self.sleep(2.0**tried)
        raise RegistryError(f"{self.host}/{self.name(repository)}: {TRIES_MAX} times: {reason}")

    def _send(
        self,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str],
        data: bytes | Iterator[bytes] = b"",
    ) -> Answer:
        plain = {"accept-encoding": "identity", **headers}
        with self.http.stream(method, url, headers=plain, content=data or None) as response:
            body = bytearray()
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    raise RegistryError(f"{url.host}: more than {ANSWER_BYTES_MAX} bytes of answer")
            lowered = {name.lower(): value for name, value in response.headers.items()}
            return Answer(status=response.status_code, headers=lowered, body=bytes(body))

    def _expect(self, answer: Answer, repository: str, expected: set[int]) -> None:
        if answer.status in expected:
            return
        said = answer.body[:300].decode("utf-8", "replace")
        hint = " (log in with `docker login`)" if answer.status in {401, 403} else ""
        raise RegistryError(
            f"{self.host}/{self.name(repository)}: status {answer.status}{hint}: {said!r}"
        )

    def _authorization(self, repository: str) -> dict[str, str]:
        token = self.tokens.get(repository)
        return {"authorization": token} if token else {}

    def _ask(self, repository: str, answer: Answer) -> str:
        """What a registry that does not know us wants to have in Authorization."""
        said = answer.headers.get("www-authenticate", "")
        kind, _, rest = said.partition(" ")
        own = self.credentials
        if kind.lower() == "basic" and own is not None:
            return _basic(own)
        asked = dict(CHALLENGE.findall(rest))
        if kind.lower() != "bearer" or "realm" not in asked:
            self._expect(answer, repository, set())
        realm = self._join(asked["realm"])
        scope = f"repository:{self.name(repository)}:pull,push"
        where = realm.copy_merge_params({"service": asked.get("service", ""), "scope": scope})
        headers = {}
        if own is not None:
            headers["authorization"] = _basic(own)
        given = self._send("GET", where, headers)
        self._expect(given, repository, {200})
        return f"Bearer {_read_token(given.body, realm.host)}"

    def _scheme(self) -> str:
        return "http" if LOOPBACK.fullmatch(self.host) else "https"

    def _join(self, location: str) -> httpx.URL:
        """Where the registry sends us: a path of its own, or another host over TLS."""
        try:
            target = httpx.URL(f"{self._scheme()}://{self.host}/").join(location)
        except httpx.InvalidURL as error:
            raise RegistryError(f"{self.host} leads to {location!r:.160}: no address") from error
        inside = self._scheme() == "http" and LOOPBACK.fullmatch(target.netloc.decode())
        if target.scheme != "https" and not inside:
            raise RegistryError(f"{self.host} leads to {target.scheme}://{target.host}: not TLS")
        return target

    def _is_ours(self, target: httpx.URL) -> bool:
        return target.netloc.decode() == self.host and target.scheme == self._scheme()


def _basic(credentials: Credentials) -> str:
    said = f"{credentials.user}:{credentials.password}".encode()
    return f"Basic {base64.b64encode(said).decode()}"


def _read_token(body: bytes, host: str) -> str:
    try:
        said = oci.read_document(body, f"the token of {host}")
    except LayoutError as error:
        raise RegistryError(str(error)) from error
    token = said.get("token") or said.get("access_token")
    if not isinstance(token, str) or not token.isprintable():
        raise RegistryError(f"{host}: an answer without a token: {json.dumps(sorted(said))[:200]}")
    return token
