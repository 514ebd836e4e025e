"""What keys use of a service, held against what they may: rates by key, tokens and room by name. Counters, no clock, no task.

Rates are the inference gateway's own buckets. Tokens are charged when a call is taken in, by the most that it may cost, and
what it did not cost is given back with its answer: what was spent is in the book, in the transaction of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollout.inference.gateway.keys import ApiKey
from rollout.inference.gateway.rules.limits import KeyBudgets
from rollout.inference.gateway.rules.refusals import ApiRefusal
from rollout.service.refusals import CallRefused, QuotaSpent, RateReached
from rollout.service.tenants.room import QUEUE_BOUNDS, RoomBounds, SharedRoom

QUEUED = "calls that wait for their answers"
SAMPLES_WAITING_MAX = 4096
"""Sampling calls of one tenant that may wait."""
SAMPLES_OF_ALL_MAX = 65_536
"""Of all tenants together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLoad:
    """What a call takes while it waits: tokens at most, bytes in the queue, bytes of what it would save.

    ``exact``: it costs just these tokens, unless it is refused; sampling calls do not say. ``ahead``: it waits for a call that has not come.
    """

    tokens: int = 0
    size_bytes: int = 0
    saved_bytes: int = 0
    exact: bool = True
    ahead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallTicket:
    """One call that was taken in; ``key`` None: by an earlier process, whose rates are forgotten."""

    owner: str
    load: CallLoad
    key: ApiKey | None = None


@dataclass(slots=True)
class OwnerUse:
    """``charged``: tokens of everything that was taken in; ``held``: of these, the most that waiting samples may cost.

    ``samples`` are those that wait; ``saving``: bytes that waiting saves would add.
    """

    charged: int = 0
    held: int = 0
    samples: int = 0
    saving: int = 0


class TenantUse:
    """The counters of all keys. ``bounds`` are of the queues."""

    def __init__(self, bounds: RoomBounds = QUEUE_BOUNDS) -> None:
        self.room = SharedRoom(bounds, QUEUED)
        self._rates = KeyBudgets()
        self._owners: dict[str, OwnerUse] = {}

    def begin(self, spent: Mapping[str, int]) -> None:
        """Take over what the book says was spent, by owner."""
        self._owners = {owner: OwnerUse(charged=units) for owner, units in spent.items()}

    def of(self, owner: str) -> OwnerUse:
        """What a name uses."""
        return self._owners.setdefault(owner, OwnerUse())

    def admit(self, key: ApiKey, load: CallLoad, saved_bytes: int, now: float) -> CallTicket:
        """Take a new call in; ``saved_bytes`` are those that its owner has saved. ``now`` is monotonic seconds.

        Raises QuotaSpent for what no waiting helps against, else CallRefused with 429 and when to come again.
        """
        use = self.of(key.name)
        check_tokens(key, use, load)
        self._check_samples(use, load)
        check_saving(key, saved_bytes + use.saving, load.saved_bytes)
        self.room.take(key.name, load.size_bytes, ahead=load.ahead)
        try:
            self._admit_request(key, now, tokens=load.tokens, ahead=load.ahead)
        except CallRefused:
            self.room.give(key.name, load.size_bytes, ahead=load.ahead)
            raise
        use.charged += load.tokens
        self._hold(use, load, 1)
        return CallTicket(owner=key.name, load=load, key=key)

    def _admit_request(
        self, key: ApiKey, now: float, *, tokens: int = 0, ahead: bool = False
    ) -> None:
        try:
            self._rates.reserve(key, tokens, now, ahead=ahead)
        except ApiRefusal as refusal:
            raise RateReached(str(refusal), refusal.retry_after or 1.0) from refusal

    def count_request(self, key: ApiKey, now: float) -> None:
        """Take one request that has its answer at once. Raises RateReached."""
        self._admit_request(key, now)
        self._rates.settle(key, 0, 0)

    def resume(self, owner: str, load: CallLoad) -> CallTicket:
        """A call that the book has without an answer: charged then, and held again now."""
        self.room.hold(owner, load.size_bytes)
        self._hold(self.of(owner), load, 1)
        return CallTicket(owner=owner, load=load)

    def withdraw(self, ticket: CallTicket) -> None:
        """It was no new call after all: as if it had never come."""
        self._release(ticket)
        self.of(ticket.owner).charged -= ticket.load.tokens
        if ticket.key is not None:
            self._rates.withdraw(ticket.key, ticket.load.tokens)

    def settle(self, ticket: CallTicket, used: int) -> None:
        """It is answered, and came to so many tokens."""
        self._release(ticket)
        self.of(ticket.owner).charged -= ticket.load.tokens - used
        if ticket.key is not None:
            self._rates.settle(ticket.key, ticket.load.tokens, used)

    def _release(self, ticket: CallTicket) -> None:
        load = ticket.load
        self.room.give(ticket.owner, load.size_bytes, ahead=load.ahead and ticket.key is not None)
        self._hold(self.of(ticket.owner), load, -1)

    def _check_samples(self, use: OwnerUse, load: CallLoad) -> None:
        if load.exact:
            return
        if use.samples >= SAMPLES_WAITING_MAX:
            raise CallRefused(
                f"{SAMPLES_WAITING_MAX} sampling calls of this key wait already; try again", 429
            )
        if sum(one.samples for one in self._owners.values()) >= SAMPLES_OF_ALL_MAX:
            raise CallRefused(f"{SAMPLES_OF_ALL_MAX} sampling calls wait already; try again", 429)

    def _hold(self, use: OwnerUse, load: CallLoad, sign: int) -> None:
        use.held += 0 if load.exact else sign * load.tokens
        use.samples += 0 if load.exact else sign
        use.saving += sign * load.saved_bytes


def check_tokens(key: ApiKey, use: OwnerUse, load: CallLoad) -> None:
    """Raise where a call does not fit what is left: QuotaSpent, or CallRefused while waiting samples may give some back."""
    budget, spent = key.training_tokens, use.charged - use.held
    if budget is None or not load.tokens or use.charged + load.tokens <= budget:
        return
    if spent + load.tokens > budget:
        raise QuotaSpent(
            f"training_tokens: keys named {key.name!r} have spent {spent} of {budget} tokens, and this call takes up to"
            f" {load.tokens}; steps and saves go on. {_raise_it(key, 'training-tokens')}"
        )
    raise CallRefused(
        f"training_tokens: keys named {key.name!r} have spent {spent} of {budget} tokens, and samples that wait may take"
        f" {use.held}: this call, of up to {load.tokens}, comes after them; try again",
        429,
    )


def check_saving(key: ApiKey, saved_bytes: int, more: int) -> None:
    """Raise QuotaSpent where what a call would save does not fit beside what is saved already."""
    quota = key.training_bytes
    if quota is not None and more and saved_bytes + more > quota:
        raise QuotaSpent(
            f"training_bytes: keys named {key.name!r} have saved {saved_bytes} of {quota} bytes, and this call would save"
            f" {more}. {_raise_it(key, 'training-bytes')}"
        )


def check_models(key: ApiKey, num_models: int) -> None:
    """Raise QuotaSpent where there may be no further model."""
    quota = key.training_models
    if quota is not None and num_models >= quota:
        raise QuotaSpent(
            f"training_models: keys named {key.name!r} have {num_models} models of {quota}."
            f" {_raise_it(key, 'training-models')}"
        )


def _raise_it(key: ApiKey, option: str) -> str:
    return f"Whoever runs the service raises it: rollout infer keys change {key.id} --{option} N"
