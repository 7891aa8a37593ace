"""What a tenant may use: requests and tokens a minute, and requests at the same time.

The first two are token buckets that hold a minute's worth and fill evenly, so that a tenant may come in bursts and not
more often on the average. Tokens are taken as predicted when a request comes, and put right when the node has told
them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from steelyard.core.refusal import Refusal

MINUTE: Final = 60.0
TENANTS: Final = 10_000
"""Tenants of whom is remembered what they used. Names come from keys in the configuration or from trusted proxies; who
is forgotten begins with full buckets."""
BUSY_RETRY: Final = 1.0
"""Seconds after which it makes sense to try again when only the requests under way are too many."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one tenant; None: no limit."""

    requests: int | None = None
    """A minute."""
    tokens: int | None = None
    """A minute, prompt and output together."""
    concurrent: int | None = None


class Bucket:
    """A minute's worth of something, which fills evenly."""

    __slots__ = ("_at", "_level", "limit")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._at = now

    def level(self, now: float) -> float:
        """What is in it."""
        if now > self._at:
            self._level = min(self._level + (now - self._at) * self.limit / MINUTE, float(self.limit))
            self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Take out, or (less than 0) put back. It may get below 0: then the tenant pays for what it got too much."""
        self._level = min(self.level(now) - amount, float(self.limit))

    def wait(self, amount: float, now: float) -> float:
        """Seconds until there is so much in it."""
        return max(0.0, (min(amount, self.limit) - self.level(now)) * MINUTE / self.limit)


class Use:
    """What one tenant uses."""

    __slots__ = ("concurrent", "quota", "requests", "tokens")

    def __init__(self, quota: Quota, now: float) -> None:
        self.quota = quota
        self.concurrent = 0
        self.requests = None if quota.requests is None else Bucket(quota.requests, now)
        self.tokens = None if quota.tokens is None else Bucket(quota.tokens, now)


class Charge:
    """One request on a tenant's account, from its admission to its end."""

    __slots__ = ("_open", "tokens", "use")

    def __init__(self, use: Use, tokens: int) -> None:
        self.use = use
        self.tokens = tokens
        """As predicted."""
        self._open = True

    def settle(self, tokens: int | None, now: float) -> None:
        """The request has ended, and took so many tokens (None: as predicted). Counts once."""
        if not self._open:
            return
        self._open = False
        self.use.concurrent -= 1
        if tokens is not None and self.use.tokens is not None:
            self.use.tokens.take(tokens - self.tokens, now)


class Quotas:
    """The accounts of all tenants."""

    def __init__(self, quotas: Mapping[str, Quota], others: Quota | None = None) -> None:
        """`others` holds for each tenant that is not in `quotas`."""
        self._quotas = quotas
        self._others = others
        self._uses: OrderedDict[str, Use] = OrderedDict()

    def take_over(self, before: Quotas) -> None:
        """Keep the accounts whose limits are the same, after a reload."""
        for tenant, use in before._uses.items():
            if self._quotas.get(tenant, self._others) == use.quota:
                self._uses[tenant] = use

    def charge(self, tenant: str, tokens: int, now: float) -> Charge | Refusal | None:
        """Put a request on its tenant's account, or refuse it; None for a tenant without limits."""
        quota = self._quotas.get(tenant, self._others)
        if quota is None:
            return None
        use = self._uses.get(tenant)
        if use is None:
            if len(self._uses) >= TENANTS:
                self._forget()
            use = self._uses[tenant] = Use(quota, now)
        else:
            self._uses.move_to_end(tenant)
        if quota.concurrent is not None and use.concurrent >= quota.concurrent:
            message = f"{use.concurrent} requests of this tenant are under way, which is the limit"
            return Refusal("rate_limited", message, BUSY_RETRY)
        wait, what = 0.0, ""
        if use.requests is not None:
            wait, what = use.requests.wait(1.0, now), f"{quota.requests} requests a minute"
        if use.tokens is not None and (wait_tokens := use.tokens.wait(tokens, now)) > wait:
            wait, what = wait_tokens, f"{quota.tokens} tokens a minute"
        if wait > 0.0:
            return Refusal("rate_limited", f"this tenant may use {what}; try again in {wait:.1f} s", wait)
        use.concurrent += 1
        if use.requests is not None:
            use.requests.take(1.0, now)
        if use.tokens is not None:
            use.tokens.take(tokens, now)
        return Charge(use, tokens)

    def use(self, tenant: str) -> Use | None:
        """What a tenant uses, if that is known."""
        return self._uses.get(tenant)

    def _forget(self) -> None:
        # The one that asked longest ago; those with requests under way are needed for their end.
        for tenant, use in self._uses.items():
            if not use.concurrent:
                del self._uses[tenant]
                return
