"""The metrics: what there is, what it means, and where its numbers are in a snapshot.

Labels are bounded: node names are those of nodes that exist, routes those of the configuration. What is gone is not
told any more. A node that leaves and another under the same name are told as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

import steelyard
from steelyard.admin.exposition import CONTENT_TYPE, HistogramLines, Labels, LabelWriter, header, samples
from steelyard.admin.snapshot import HistogramCopy, Snapshot
from steelyard.core.node import State

SLICE = 256
"""Pieces (a line, or a histogram) written before the loop goes round: about a millisecond."""
STATES = tuple(state.value for state in State if state is not State.GONE)


# -- what there is

Rows = Iterator[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name, what it means, its labels, and where its numbers are in a snapshot."""

    name: str
    kind: str
    """counter or gauge."""
    help: str
    labels: tuple[str, ...]
    rows: Callable[[Snapshot], Rows]

    def write(self, snapshot: Snapshot, labels: LabelWriter) -> Iterable[str]:
        yield header(self.name, self.kind, self.help)
        yield from samples(self.name, self.labels, self.rows(snapshot), labels)


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """The same for a histogram."""

    name: str
    help: str
    labels: tuple[str, ...]
    rows: Callable[[Snapshot], Iterator[tuple[Labels, HistogramCopy]]]
    kind: str = "histogram"

    def write(self, snapshot: Snapshot, labels: LabelWriter) -> Iterable[str]:
        yield header(self.name, self.kind, self.help)
        writer: HistogramLines | None = None
        bounds: Sequence[float] = ()
        for values, histogram in self.rows(snapshot):
            if writer is None or histogram.bounds is not bounds:
                bounds = histogram.bounds
                writer = HistogramLines(self.name, self.labels, bounds, labels)
            yield writer.lines(values, histogram.counts, histogram.sum)


def _requests(snapshot: Snapshot) -> Rows:
    for (route, node), cell in snapshot.cells.items():
        for (status, outcome), count in cell.outcomes.items():
            yield (route, node, str(status), outcome), count


def _of_cells(field_name: str) -> Callable[[Snapshot], Rows]:
    def rows(snapshot: Snapshot) -> Rows:
        for key, cell in snapshot.cells.items():
            yield key, getattr(cell, field_name)

    return rows


def _histograms_of_cells(field_name: str) -> Callable[[Snapshot], Iterator[tuple[Labels, HistogramCopy]]]:
    def rows(snapshot: Snapshot) -> Iterator[tuple[Labels, HistogramCopy]]:
        for key, cell in snapshot.cells.items():
            histogram: HistogramCopy = getattr(cell, field_name)
            # Most cells have no first token: what never happened is not told.
            if any(histogram.counts):
                yield key, histogram

    return rows


def _of_nodes(field_name: str) -> Callable[[Snapshot], Rows]:
    def rows(snapshot: Snapshot) -> Rows:
        for name, node in snapshot.nodes.items():
            value = getattr(node, field_name)
            if value is not None:
                yield (name,), value

    return rows


def _states(snapshot: Snapshot) -> Rows:
    for name, node in snapshot.nodes.items():
        for state in STATES:
            yield (name, state), 1 if node.state == state else 0


def _connections(snapshot: Snapshot) -> Rows:
    for name, node in snapshot.nodes.items():
        yield (name, "idle"), node.idle
        yield (name, "busy"), max(node.open - node.idle, 0)


def _by_name(field_name: str) -> Callable[[Snapshot], Rows]:
    def rows(snapshot: Snapshot) -> Rows:
        for name, value in getattr(snapshot, field_name).items():
            yield (name,), value

    return rows


def _single(name: str, kind: str, text: str) -> Family:
    return Family(name, kind, text, (), lambda snapshot: iter((((), snapshot.single[name]),)))


_CELL = ("route", "node")
_NODE = ("node",)

FAMILIES: tuple[Family | HistogramFamily, ...] = (
    Family(
        "steelyard_requests_total",
        "counter",
        "Requests that have ended. route and node are empty where none was found or needed; outcome is ok, client_gone "
        "or the code of the error. Rare statuses of nodes are counted by their hundred.",
        ("route", "node", "status", "outcome"),
        _requests,
    ),
    HistogramFamily(
        "steelyard_request_seconds",
        "From the head of a request to the end of its answer, in seconds.",
        _CELL,
        _histograms_of_cells("total"),
    ),
    HistogramFamily(
        "steelyard_first_byte_seconds",
        "From sending a request to a node to the head of its answer, in seconds.",
        _CELL,
        _histograms_of_cells("first_byte"),
    ),
    HistogramFamily(
        "steelyard_first_token_seconds",
        "Of streams: from the head of a request to its first token, in seconds.",
        _CELL,
        _histograms_of_cells("first_token"),
    ),
    HistogramFamily(
        "steelyard_queue_seconds",
        "How long requests that were placed had waited in the line, in seconds.",
        (),
        lambda snapshot: iter((((), snapshot.queue_seconds),)),
    ),
    Family(
        "steelyard_request_body_bytes_total",
        "counter",
        "Bytes of the bodies of requests.",
        _CELL,
        _of_cells("bytes_in"),
    ),
    Family(
        "steelyard_response_body_bytes_total",
        "counter",
        "Bytes of the bodies of answers from nodes.",
        _CELL,
        _of_cells("bytes_out"),
    ),
    Family(
        "steelyard_prompt_tokens_total",
        "counter",
        "Prompt tokens, as the nodes reported them.",
        _CELL,
        _of_cells("prompt_tokens"),
    ),
    Family(
        "steelyard_completion_tokens_total",
        "counter",
        "Output tokens, as the nodes reported them.",
        _CELL,
        _of_cells("completion_tokens"),
    ),
    Family(
        "steelyard_retries_total",
        "counter",
        "Requests that were sent once more: refused, busy and race before the node began; broke and silent after.",
        ("reason",),
        _by_name("retries"),
    ),
    Family(
        "steelyard_queue_length",
        "gauge",
        "Requests that wait because no node can take them now.",
        ("route",),
        _by_name("queue_length"),
    ),
    _single("steelyard_requests_in_flight", "gauge", "Requests under way, waiting ones too."),
    _single("steelyard_client_connections", "gauge", "Open connections of clients."),
    _single("steelyard_client_connections_accepted_total", "counter", "Connections of clients that were accepted."),
    _single(
        "steelyard_client_connections_refused_total",
        "counter",
        "Connections of clients that were closed because there were too many.",
    ),
    _single(
        "steelyard_bad_requests_total",
        "counter",
        "What clients sent that was no HTTP, or too large a head, or too slow.",
    ),
    Family(
        "steelyard_node_connections",
        "gauge",
        "Open connections to a node, idle in the pool or busy.",
        ("node", "state"),
        _connections,
    ),
    _single(
        "steelyard_node_connections_opened_total", "counter", "Connections to nodes that were opened for requests."
    ),
    Family(
        "steelyard_node_state",
        "gauge",
        "1 for the state a node is in, 0 for the others.",
        ("node", "state"),
        _states,
    ),
    Family("steelyard_node_in_flight", "gauge", "Leases on a node, orphaned ones too.", _NODE, _of_nodes("in_flight")),
    Family(
        "steelyard_node_orphaned",
        "gauge",
        "Leases on a node that goes on computing for a client that is gone.",
        _NODE,
        _of_nodes("orphaned"),
    ),
    Family(
        "steelyard_node_reserved_memory_bytes",
        "gauge",
        "Device memory that the leases on a node hold, in bytes.",
        _NODE,
        _of_nodes("reserved_memory"),
    ),
    Family(
        "steelyard_node_free_memory_bytes",
        "gauge",
        "Device memory that new leases may take, in bytes; only where memory is accounted for.",
        _NODE,
        _of_nodes("free_memory"),
    ),
    Family(
        "steelyard_node_reserved_seconds",
        "gauge",
        "Predicted work that the leases on a node stand for, in seconds.",
        _NODE,
        _of_nodes("reserved_seconds"),
    ),
    Family(
        "steelyard_node_reserved_kv_tokens",
        "gauge",
        "Tokens of KV cache that the leases on a node stand for.",
        _NODE,
        _of_nodes("reserved_tokens"),
    ),
    Family("steelyard_node_served_total", "counter", "Leases granted on a node.", _NODE, _of_nodes("served")),
    Family(
        "steelyard_leases",
        "gauge",
        "Leases on all nodes: live, or orphaned (the client is gone, the node goes on computing).",
        ("state",),
        _by_name("leases"),
    ),
    _single("steelyard_body_memory_bytes", "gauge", "Bytes of request bodies that are held in memory."),
    _single("steelyard_body_disk_bytes", "gauge", "Bytes of request bodies that are held on disk."),
    _single(
        "steelyard_loop_lag_max_seconds",
        "gauge",
        "The longest that the event loop was late since the last scrape, in seconds. Every scrape starts it anew.",
    ),
    _single(
        "steelyard_access_log_dropped_total", "counter", "Lines of the access log that were lost: nobody took them."
    ),
    Family(
        "steelyard_build_info",
        "gauge",
        "Always 1; the version that runs.",
        ("version",),
        lambda snapshot: iter((((steelyard.__version__,), 1),)),
    ),
)


def _process_registry() -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


PROCESS = _process_registry()
"""process_* and python_gc_*: some twenty lines."""


def lines(snapshot: Snapshot) -> Iterator[str]:
    """The text of all metrics of the gateway, piece by piece."""
    labels = LabelWriter()
    for family in FAMILIES:
        yield from family.write(snapshot, labels)


async def render(snapshot: Snapshot) -> bytes:
    """The text that a scraper gets. Written in slices, so that requests do not wait for it."""
    pieces = lines(snapshot)
    written = []
    while piece := "".join(islice(pieces, SLICE)).encode("utf-8", "replace"):
        written.append(piece)
        await asyncio.sleep(0)
    # Counting file descriptors takes long where there are many.
    written.append(await asyncio.to_thread(generate_latest, PROCESS))
    return b"".join(written)


__all__ = ["CONTENT_TYPE", "FAMILIES", "lines", "render"]
