"""What a key may use: requests and tokens a minute in buckets, and requests at a time. Pure but for its counters.

Tokens are reserved when a request is admitted, by a guess, and settled when its usage is known: a request whose usage is
never told keeps its reserve, so that leaving early saves nobody's budget. Buckets refill steadily and hold a minute's worth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rollout.inference.gateway.keys import ApiKey
from rollout.inference.gateway.rules.refusals import ApiRefusal

SECONDS = 60.0


@dataclass(slots=True)
class TokenBucket:
    """``rate`` units a minute; ``level`` may fall below 0 when something cost more than was reserved."""

    rate: int
    level: float
    at: float

    def refill(self, now: float) -> None:
        """Add what has come since the last call."""
        self.level = min(self.rate, self.level + (now - self.at) * self.rate / SECONDS)
        self.at = now

    def wait_seconds(self, amount: float) -> float:
        """How long until ``amount`` can be taken; 0: now. More than the bucket holds waits until it is full."""
        missing = min(amount, self.rate) - self.level
        return max(0.0, missing * SECONDS / self.rate)


@dataclass(slots=True)
class KeyUse:
    """The counters of one key. Buckets are made anew when the key's limits change."""

    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    in_flight: int = 0


@dataclass(slots=True)
class KeyBudgets:
    """The counters of all keys that have asked."""

    uses: dict[str, KeyUse] = field(default_factory=dict)

    def reserve(
        self, key: ApiKey, tokens: int, now: float, *, ahead: bool = False
    ) -> dict[str, str]:
        """Take one request and its tokens; the headers that say what is left. Raises ApiRefusal (429).

        ``ahead``: a request that waits for one that has not come, for which half of the places stay free.
        """
        use = self._use(key, now)
        places = key.in_flight_max
        if places is not None and use.in_flight >= (places // 2 if ahead else places):
            raise _over(f"this key may have {key.in_flight_max} requests at a time", 1.0)
        for bucket, amount, what in ((use.requests, 1, "requests"), (use.tokens, tokens, "tokens")):
            if bucket is not None and (seconds := bucket.wait_seconds(amount)) > 0:
                raise _over(
                    f"Rate limit reached: {bucket.rate} {what} a minute; try again in {seconds:.1f} s",
                    seconds,
                )
        for bucket, amount in ((use.requests, 1), (use.tokens, tokens)):
            if bucket is not None:
                bucket.level -= amount
        use.in_flight += 1
        return _headers(use)

    def settle(self, key: ApiKey, reserved: int, used: int | None) -> None:
        """The request has ended. ``used`` None: nobody knows, the reserve is kept."""
        use = self.uses[key.id]
        use.in_flight -= 1
        if use.tokens is not None and used is not None:
            use.tokens.level = min(use.tokens.rate, use.tokens.level + reserved - used)

    def withdraw(self, key: ApiKey, reserved: int) -> None:
        """The request was none after all: it is as if it had never been reserved."""
        self.settle(key, reserved, 0)
        use = self.uses[key.id]
        if use.requests is not None:
            use.requests.level = min(use.requests.rate, use.requests.level + 1)

    def forget_idle(self, now: float) -> None:
        """Drop what says nothing: keys that have nothing open and whose buckets are full."""
        for key_id, use in list(self.uses.items()):
            buckets = [one for one in (use.requests, use.tokens) if one is not None]
            for one in buckets:
                one.refill(now)
            if not use.in_flight and all(one.level >= one.rate for one in buckets):
                del self.uses[key_id]

    def _use(self, key: ApiKey, now: float) -> KeyUse:
        use = self.uses.setdefault(key.id, KeyUse())
        use.requests = _bucket(use.requests, key.requests_per_minute, now)
        use.tokens = _bucket(use.tokens, key.tokens_per_minute, now)
        return use


def _bucket(known: TokenBucket | None, rate: int | None, now: float) -> TokenBucket | None:
    if rate is None:
        return None
    if known is None or known.rate != rate:
        return TokenBucket(rate=rate, level=rate, at=now)
    known.refill(now)
    return known


def _over(message: str, seconds: float) -> ApiRefusal:
    return ApiRefusal(
        429,
        message,
        code="rate_limit_exceeded",
        retry_after=math.ceil(seconds),
        reason="key_limit",
    )


def _headers(use: KeyUse) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, bucket in (("requests", use.requests), ("tokens", use.tokens)):
        if bucket is not None:
            full = (bucket.rate - bucket.level) * SECONDS / bucket.rate
            headers[f"x-ratelimit-limit-{name}"] = str(bucket.rate)
            headers[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level)))
            headers[f"x-ratelimit-reset-{name}"] = f"{full:.1f}s"
    return headers


def allows(key: ApiKey, name: str) -> bool:
    """Whether a key may ask for this name."""
    return not key.models or name in key.models
