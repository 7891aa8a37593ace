"""The numbers of one moment, copied from the data path when somebody asks for metrics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from steelyard.admin.inspection import all_nodes
from steelyard.core.node import UNLIMITED, Node, State
from steelyard.proxy.counters import Cell, Histogram

if TYPE_CHECKING:
    from steelyard.admin.running import Running


SLICE = 64
"""Nodes, or cells, that are copied before the loop goes round: half a millisecond."""


@dataclass(slots=True)
class NodeNumbers:
    """One node's numbers."""

    state: str
    in_flight: int = 0
    orphaned: int = 0
    reserved_memory: int = 0
    free_memory: int | None = None
    reserved_seconds: float = 0.0
    reserved_tokens: int = 0
    served: int = 0
    idle: int = 0
    open: int = 0


class HistogramCopy(NamedTuple):
    bounds: tuple[float, ...]
    counts: list[int]
    sum: float


class CellCopy(NamedTuple):
    """The counters of one (route, node)."""

    outcomes: dict[tuple[int, str], int]
    bytes_in: int
    bytes_out: int
    prompt_tokens: int
    completion_tokens: int
    total: HistogramCopy
    first_byte: HistogramCopy
    first_token: HistogramCopy


@dataclass(slots=True)
class Snapshot:
    """All numbers of one moment."""

    cells: dict[tuple[str, str], CellCopy]
    nodes: dict[str, NodeNumbers]
    queue_seconds: HistogramCopy
    queue_length: dict[str, int]
    retries: dict[str, int]
    leases: dict[str, int]
    single: dict[str, float] = field(default_factory=dict)
    """Metrics without labels, by name."""


async def take(service: Running) -> Snapshot:
    """Copy the numbers; the longest lateness starts anew. In slices, so that requests do not wait for it."""
    gateway = service.gateway
    balancer, counters = gateway.balancer, gateway.counters
    nodes = await _node_numbers(service)
    cells = await _cells(service, nodes)
    routes = {route.name for route in gateway.settings.routes}
    lag, counters.loop_lag_max = counters.loop_lag_max, 0.0
    return Snapshot(
        cells=cells,
        nodes=nodes,
        queue_seconds=_histogram(counters.queue_seconds),
        queue_length={name: balancer.queue.of_route(name) for name in sorted(routes)},
        retries=dict(counters.retries),
        leases={"live": balancer.ledger.live, "orphaned": balancer.ledger.orphaned},
        single={
            "steelyard_requests_in_flight": len(gateway.exchanges),
            "steelyard_client_connections": len(gateway.clients),
            "steelyard_client_connections_accepted_total": counters.connections,
            "steelyard_client_connections_refused_total": counters.connections_refused,
            "steelyard_bad_requests_total": counters.bad_requests,
            "steelyard_node_connections_opened_total": counters.node_connections,
            "steelyard_body_memory_bytes": gateway.body_memory,
            "steelyard_body_disk_bytes": gateway.body_disk,
            "steelyard_loop_lag_max_seconds": lag,
            "steelyard_access_log_dropped_total": gateway.log.dropped,
        },
    )


async def _cells(service: Running, nodes: dict[str, NodeNumbers]) -> dict[tuple[str, str], CellCopy]:
    """The cells whose labels there are: what a request of a former route or node left behind is not told."""
    routes = {route.name for route in service.gateway.settings.routes}
    copies: dict[tuple[str, str], CellCopy] = {}
    for key, cell in list(service.gateway.counters.cells.items()):
        route, node = key
        if (route in routes or not route) and (node in nodes or not node):
            copies[key] = _cell(cell)
            if not len(copies) % SLICE:
                await asyncio.sleep(0)
    return copies


async def _node_numbers(service: Running) -> dict[str, NodeNumbers]:
    gateway = service.gateway
    numbers: dict[str, NodeNumbers] = {}
    for count, node in enumerate(list(all_nodes(gateway)), 1):
        if not count % SLICE:
            await asyncio.sleep(0)
        if node.state is State.GONE:
            continue
        row = numbers.get(node.name)
        if row is None:
            row = numbers[node.name] = NodeNumbers(node.state.value)
            row.served = node.served
            row.free_memory = None if node.memory_capacity == UNLIMITED else node.free_memory
        _add(row, node)
        upstream = gateway.upstreams.get(node)
        if upstream is not None:
            row.idle += len(upstream.idle)
            row.open += len(upstream.open)
    return numbers


def _add(row: NodeNumbers, node: Node) -> None:
    row.in_flight += node.in_flight
    row.orphaned += node.orphaned
    row.reserved_memory += node.reserved_memory
    row.reserved_seconds += node.reserved_seconds
    row.reserved_tokens += node.reserved_tokens


def _histogram(histogram: Histogram) -> HistogramCopy:
    return HistogramCopy(histogram.bounds, histogram.counts.copy(), histogram.sum)


def _cell(cell: Cell) -> CellCopy:
    return CellCopy(
        cell.outcomes.copy(),
        cell.bytes_in,
        cell.bytes_out,
        cell.prompt_tokens,
        cell.completion_tokens,
        _histogram(cell.total),
        _histogram(cell.first_byte),
        _histogram(cell.first_token),
    )
