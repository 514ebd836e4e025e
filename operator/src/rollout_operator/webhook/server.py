"""Two small servers: the webhook (TLS), and health (plain HTTP).

kopf hands over one function that answers a review and asks for a server that calls it; this is that
server. kopf's own closes its port to change a certificate, this one does not. Ready means: a
certificate is loaded *and* kopf answers a trial review, so the first request after Ready is answered.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from rollout_operator.webhook.crowd import REVIEW_BYTES_MAX, Crowd, parse_review
from rollout_operator.webhook.tls import Certificate

log = logging.getLogger(__name__)
Answer = Callable[..., Awaitable[Mapping[str, Any]]]
REVIEW_SECONDS_MAX = 5.0
"""The configuration's ``timeoutSeconds``: nobody reads a later answer."""
PARSED_MAX = 2
"""Reviews that are parsed and judged at once: judging takes a processor, and a parsed body the memory."""
CERTIFICATE_PATIENCE_SECONDS = 600.0
SHARED_UID = "review"
TRIAL: Mapping[str, Any] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "trial",
        "operation": "DELETE",
        "resource": {"group": "rollout.dev", "version": "v1alpha1", "resource": "rolloutruns"},
        "userInfo": {},
        "dryRun": True,
        "object": None,
        "oldObject": {"metadata": {"name": "trial", "namespace": "trial"}},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """``review`` is TLS, ``health`` plain; 0 lets the machine choose, for tests.

    While the process ends it answers for ``drain_seconds`` more and asks callers to connect anew.
    """

    host: str
    review: int = 9443
    health: int = 8081
    drain_seconds: float = 5.0


class WebhookServer:
    """Answers reviews and probes; ``address`` is where it listens once it does."""

    def __init__(self, certificate: Certificate, ports: Ports) -> None:
        self.address: tuple[str, int] | None = None
        self.health_address: tuple[str, int] | None = None
        self._certificate = certificate
        self._ports = ports
        self._answer: Answer | None = None
        self._is_ending = False
        self._crowd = Crowd()
        self._judging = asyncio.Semaphore(PARSED_MAX)
        self._registry = CollectorRegistry()
        self._reviews = Counter(
            "rollout_webhook_reviews",
            "Reviews answered, by verdict: allowed, refused, failed; crowded out.",
            ["verdict"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "rollout_webhook_review_seconds",
            "Time from a review's arrival to its answer.",
            registry=self._registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
        )

    async def serve_health(self) -> web.AppRunner:
        """Open /healthz, /readyz and /metrics; the caller cleans the runner up."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._live),
                web.get("/readyz", self._ready),
                web.get("/metrics", self._metrics),
            ]
        )
        runner, self.health_address = await _listen(app, self._ports.host, self._ports.health)
        return runner

    async def __call__(self, answer: Answer) -> AsyncIterator[Mapping[str, Any]]:
        """Serve until cancelled. kopf wants the address; it manages no configuration with it."""
        self._answer = answer
        await self._certificate.wait_loaded(patience_seconds=CERTIFICATE_PATIENCE_SECONDS)
        app = web.Application(client_max_size=REVIEW_BYTES_MAX)
        app.add_routes([web.post("/{id:.*}", self._review)])
        runner, self.address = await _listen(
            app, self._ports.host, self._ports.review, context=self._certificate.context
        )
        try:
            yield {"url": f"https://{self.address[0]}:{self.address[1]}"}
            await self._certificate.follow()
        finally:
            self._is_ending = True
            await asyncio.sleep(self._ports.drain_seconds)
            await runner.cleanup()
            self._answer = None

    async def _review(self, request: web.Request) -> web.Response:
        peer, size_bytes = request.remote or "", _declared_size(request)
        if not self._crowd.has_room(peer, size_bytes):
            self._reviews.labels("crowded").inc()
            raise web.HTTPTooManyRequests(headers={"Retry-After": "1", "Connection": "close"})
        with self._crowd.inside(peer, size_bytes):
            response = web.json_response(await self._judge(request))
        if self._is_ending:
            response.force_close()
        return response

    async def _judge(self, request: web.Request) -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        begin, verdict = loop.time(), "failed"
        try:
            async with asyncio.timeout(REVIEW_SECONDS_MAX):
                body = await request.read()
                async with self._judging:
                    answer = await self._ask(_parse(body))
            verdict = "allowed" if answer["response"]["allowed"] else "refused"
        except TimeoutError as error:
            reason = f"no answer within {REVIEW_SECONDS_MAX:g} s"
            raise web.HTTPServiceUnavailable(reason=reason) from error
        finally:
            self._reviews.labels(verdict).inc()
            self._seconds.observe(loop.time() - begin)
        return answer

    async def _ask(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer of kopf, which remembers objects by uid until it sees them deleted.

        It watches nothing here, so it would remember for ever: under one uid it remembers one.
        """
        if self._answer is None:
            raise web.HTTPServiceUnavailable(reason="the webhook is ending")
        request = body["request"]
        for name in ("object", "oldObject"):
            if request.get(name):
                request[name].setdefault("metadata", {})["uid"] = SHARED_UID
        try:
            return await self._answer(body)
        except (LookupError, TypeError, ValueError) as error:
            raise web.HTTPBadRequest(reason=_one_line(error)) from error

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, _: web.Request) -> web.Response:
        if reason := await self.not_ready():
            return web.Response(status=503, text=reason)
        return web.Response(text="ok")

    async def not_ready(self) -> str:
        """Why reviews would not be answered; empty when they would."""
        if not self._certificate.is_loaded:
            return "no certificate yet"
        if self._is_ending:
            return "ending"
        if self.address is None or self._answer is None:
            return "not listening yet"
        try:
            await self._answer(json.loads(json.dumps(TRIAL)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it would fail a review too
            log.warning("a trial review failed error=%r", error)
            return f"a trial review failed: {_one_line(error)}"
        return ""

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _declared_size(request: web.Request) -> int:
    """Bytes of the body, as its sender says before it comes; no more are read."""
    size = request.content_length
    if size is None:
        raise web.HTTPLengthRequired
    if size > REVIEW_BYTES_MAX:
        raise web.HTTPRequestEntityTooLarge(max_size=REVIEW_BYTES_MAX, actual_size=size)
    return size


def _parse(body: bytes) -> dict[str, Any]:
    try:
        return parse_review(body)
    except ValueError as error:
        raise web.HTTPBadRequest(reason=_one_line(error)) from error


async def _listen(
    app: web.Application, host: str, port: int, *, context: Any = None
) -> tuple[web.AppRunner, tuple[str, int]]:
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=10.0)
    await runner.setup()
    await web.TCPSite(runner, host, port, ssl_context=context).start()
    address = runner.addresses[0]
    return runner, (address[0], address[1])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
