"""The audit: each of its checks can fail."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from steelyard.sim import audit
from steelyard.sim.figures import Latencies
from steelyard.sim.load import Record


def record(outcome: str, error: str = "", id: str = "x", end: float = 2.0) -> Record:
    made = Record(id, "a", 0.0)
    made.outcome, made.error, made.end = outcome, error, end
    return made


GOOD = [record("answered"), record("error", "CUDA out of memory"), record("error", "queue full")]


def fleet(finished: int = 0, oom: int = 0, open: int = 0, held: int = 0, log: tuple[Any, ...] = ()) -> Any:
    stats = SimpleNamespace(finished=finished, oom=oom, open=open, log=log)
    card = SimpleNamespace(allocated=5 + held, resident=5)
    return SimpleNamespace(nodes=[SimpleNamespace(stats=stats, engine=SimpleNamespace(card=card))])


def test_every_request_ended() -> None:
    assert [check.holds for check in audit.every_request_ended(3, GOOD)] == [True, True]
    assert [check.holds for check in audit.every_request_ended(4, GOOD)] == [False, True]


@pytest.mark.parametrize("lost", [record("lost", "connection reset"), record("")])
def test_a_lost_request_is_found_and_named(lost: Record) -> None:
    sent, ended = audit.every_request_ended(4, [*GOOD, lost])
    assert sent.holds
    assert not ended.holds
    assert f"first: x: {lost.error or 'no end'}" in ended.detail


@pytest.mark.parametrize(
    ("finished", "oom", "holds"),
    [
        (1, 1, True),
        (1, 2, True),  # one was tried again elsewhere: the client saw one error less
        (2, 1, False),  # an answer was computed and got lost, or computed twice
        (0, 1, False),  # an answer that no node gave
        (1, 0, False),  # an error that no node had
    ],
)
def test_clients_and_nodes_must_agree(finished: int, oom: int, holds: bool) -> None:
    assert audit.nodes_agree(GOOD, fleet(finished, oom)).holds is holds


def node(in_flight: int = 0, memory: int = 0, tokens: int = 0, seconds: float = 0.0) -> dict[str, Any]:
    return {"in_flight": in_flight, "reserved": {"memory": memory, "kv_tokens": tokens, "seconds": seconds}}


class Gateway:
    """Answers as the admin API does."""

    def __init__(self, nodes: list[dict[str, Any]], queued: int = 0) -> None:
        self._answers = {"/api/nodes": {"nodes": nodes}, "/api/queue": {"length": queued}}

    async def ask(self, path: str) -> Any:
        return self._answers[path]


@pytest.mark.parametrize(
    ("gateway", "nodes", "broken"),
    [
        (Gateway([node(), node()]), fleet(), []),
        (Gateway([node(), node(seconds=1e-12)]), fleet(), []),
        (Gateway([node(), node(in_flight=1)]), fleet(), ["leases are zero"]),
        (Gateway([node(memory=8)]), fleet(), ["leases are zero"]),
        (Gateway([node(tokens=1)]), fleet(), ["leases are zero"]),
        (Gateway([node(seconds=2.0)]), fleet(), ["leases are zero"]),
        (Gateway([node(seconds=-2.0)]), fleet(), ["leases are zero"]),
        (Gateway([node()], queued=1), fleet(), ["nobody waits"]),
        (Gateway([node()]), fleet(open=1), ["nodes are idle"]),
        (Gateway([node()]), fleet(held=8), ["nodes are idle"]),
    ],
)
def test_at_rest(gateway: Any, nodes: Any, broken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "SETTLE_SECONDS", 0.02)
    monkeypatch.setattr(audit, "POLL_SECONDS", 0.005)
    checks = asyncio.run(audit.at_rest(gateway, nodes))
    assert [check.name for check in checks if not check.holds] == broken


def execution(id: str, arrived: float, computed: float | None, outcome: str = "finished") -> Any:
    return SimpleNamespace(request_id=id, arrived_at=arrived, computed_at=computed, outcome=outcome)


def test_what_the_machine_adds_is_what_the_card_did_not_take() -> None:
    log = (
        execution("a", 100.0, 101.8),
        execution("b", 100.0, 104.0, "oom"),
        execution("c", 100.0, None),
        execution("a", 90.0, 99.0, "failed"),
    )
    records = [record("answered", id="a"), record("error", id="b"), record("answered", id="c")]
    assert audit.distortions(records, fleet(log=log)) == [pytest.approx(0.2)]


@pytest.mark.parametrize(("added", "holds"), [([0.1, 0.2], True), ([0.5, 0.6], False), ([], False)])
def test_time_must_not_run_too_quickly(added: list[float], holds: bool) -> None:
    check = audit.undistorted(added, Latencies.of([2.0, 4.0]), 0.1)
    assert check.holds is holds
    assert ("--time-scale" in check.detail) is not holds


def test_a_gateway_that_had_to_be_killed_is_found() -> None:
    assert audit.ended_gracefully(0).holds
    assert not audit.ended_gracefully(-9).holds
