"""What a tenant may use: a minute's worth at once, and then as much as comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.core import quota
from steelyard.core.quota import Bucket, Charge, Quota, Quotas
from steelyard.core.refusal import Refusal


def charge(quotas: Quotas, tokens: int = 0, now: float = 0.0, tenant: str = "art") -> Charge:
    found = quotas.charge(tenant, tokens, now)
    assert isinstance(found, Charge), found
    return found


def refused(quotas: Quotas, tokens: int = 0, now: float = 0.0) -> Refusal:
    found = quotas.charge("art", tokens, now)
    assert isinstance(found, Refusal)
    assert found.code == "rate_limited"
    return found


def test_a_tenant_without_limits_has_no_account() -> None:
    quotas = Quotas({"art": Quota(requests=1)})
    assert quotas.charge("lab", 1, 0.0) is None
    assert quotas.use("lab") is None


def test_requests_come_back_evenly() -> None:
    quotas = Quotas({"art": Quota(requests=60)})
    for _ in range(60):
        charge(quotas).settle(None, 0.0)
    assert refused(quotas).retry_after == pytest.approx(1.0)
    assert "60 requests a minute" in refused(quotas).message
    charge(quotas, now=1.0)
    refused(quotas, now=1.5)
    charge(quotas, now=2.0)


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = Bucket(60, 100.0)
    bucket.take(60, 100.0)
    assert bucket.level(50.0) == 0.0
    assert bucket.level(100.0) == 0.0
    assert bucket.level(1000.0) == 60.0


def test_tokens_are_taken_as_predicted_and_put_right() -> None:
    quotas = Quotas({"art": Quota(tokens=6000)})
    first = charge(quotas, 6000)
    assert "6000 tokens a minute" in refused(quotas, 1).message
    first.settle(1000, 0.0)
    second = charge(quotas, 5000)
    second.settle(8000, 0.0)
    use = quotas.use("art")
    assert use is not None
    assert use.tokens is not None
    assert use.tokens.level(0.0) == -3000.0
    assert refused(quotas, 100).retry_after == pytest.approx(31.0)
    second.settle(0, 0.0)
    assert use.tokens.level(0.0) == -3000.0, "a request is settled once"
    charge(quotas, 100, 31.0).settle(None, 31.0)
    assert use.tokens.level(31.0) == 0.0


def test_a_request_larger_than_the_limit_needs_a_full_bucket() -> None:
    quotas = Quotas({"art": Quota(tokens=100)})
    charge(quotas, 1000).settle(1000, 0.0)
    assert refused(quotas, 1000).retry_after == pytest.approx(600.0)
    charge(quotas, 1000, 600.0)


def test_the_longer_wait_counts() -> None:
    quotas = Quotas({"art": Quota(requests=1, tokens=60)})
    charge(quotas, 60)
    assert refused(quotas, 1).retry_after == pytest.approx(60.0)
    assert "1 requests a minute" in refused(quotas, 1).message


def test_requests_under_way_are_given_back() -> None:
    quotas = Quotas({"art": Quota(concurrent=2)})
    first, second = charge(quotas), charge(quotas)
    assert "2 requests of this tenant are under way" in refused(quotas).message
    first.settle(5, 0.0)
    first.settle(5, 0.0)
    third = charge(quotas)
    refused(quotas)
    for each in (second, third):
        each.settle(None, 0.0)
    use = quotas.use("art")
    assert use is not None
    assert use.concurrent == 0


def test_every_other_tenant_has_an_account_of_its_own() -> None:
    quotas = Quotas({"art": Quota()}, Quota(concurrent=1))
    charge(quotas, tenant="lab")
    charge(quotas, tenant="shop")
    assert isinstance(quotas.charge("lab", 0, 0.0), Refusal)
    for _ in range(5):
        charge(quotas, tenant="art")


def test_a_reload_keeps_what_was_used_where_the_limits_are_the_same() -> None:
    before = Quotas({"art": Quota(requests=1), "lab": Quota(requests=1)})
    charge(before)
    charge(before, tenant="lab")
    after = Quotas({"art": Quota(requests=1), "lab": Quota(requests=2)})
    after.take_over(before)
    refused(after)
    charge(after, tenant="lab")


def test_tenants_are_forgotten_but_not_with_requests_under_way() -> None:
    quotas = Quotas({}, Quota(requests=10))
    under_way = charge(quotas, tenant="busy")
    for number in range(quota.TENANTS + 5):
        charge(quotas, tenant=f"t{number}").settle(None, 0.0)
    assert quotas.use("busy") is under_way.use
    assert quotas.use("t0") is None
    assert quotas.use(f"t{quota.TENANTS + 4}") is not None
    assert len(quotas._uses) == quota.TENANTS


def test_when_all_are_under_way_none_is_forgotten() -> None:
    quotas = Quotas({}, Quota(concurrent=1))
    for number in range(quota.TENANTS + 1):
        charge(quotas, tenant=f"t{number}")
    assert len(quotas._uses) == quota.TENANTS + 1


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 50)), max_size=60))
def test_in_any_minute_no_more_than_twice_the_limit_begins(steps: list[tuple[float, int]]) -> None:
    """A bucket that is full at the start of a minute gives its content and what comes back during it."""
    quotas = Quotas({"art": Quota(requests=10, tokens=100)})
    now, taken = 0.0, []
    for pause, tokens in steps:
        now += pause
        if isinstance(found := quotas.charge("art", tokens, now), Charge):
            found.settle(tokens, now)
            taken.append((now, tokens))
    for start, _ in taken:
        window = [tokens for at, tokens in taken if start <= at < start + 60.0]
        assert len(window) <= 20
        assert sum(window) <= 200 + 1e-6
