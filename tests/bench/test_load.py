"""The client connection of the load generator finds the end of every answer, however it is cut into reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import payloads
from bench.load import Connection

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
STREAM = payloads.STREAM_HEAD + payloads.STREAM_EVENT * 3 + payloads.STREAM_END
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\nhello"


class Wire:
    """Stands for the transport of a connection."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


def connected() -> tuple[Connection, list[int], list[bytes]]:
    statuses: list[int] = []
    bodies: list[bytes] = []
    connection = Connection(
        lambda _connection, status: statuses.append(status), lambda _connection, data: bodies.append(data)
    )
    wire: Any = Wire()
    connection.connection_made(wire)
    return connection, statuses, bodies


@given(st.sampled_from([PLAIN, STREAM]), st.data())
def test_any_cutting_of_an_answer_gives_one_end_and_the_whole_body(answer: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(1, len(answer) - 1), max_size=8)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    connection, statuses, bodies = connected()
    connection.send(b"request")
    for piece in pieces:
        assert statuses == []
        connection.data_received(piece)
    assert statuses == [200]
    assert b"".join(bodies) == answer.partition(b"\r\n\r\n")[2]


def test_a_connection_is_used_again_after_an_answer() -> None:
    connection, statuses, _ = connected()
    for answer in (PLAIN, STREAM, PLAIN.replace(b"200 OK", b"503 No")):
        connection.send(b"request")
        connection.data_received(answer)
    assert statuses == [200, 200, 503]


@pytest.mark.parametrize(
    ("received", "status"),
    [(b"", 0), (b"HTTP/1.1 200 OK\r\n", 0), (PLAIN[:-1], 0), (STREAM[:-1], 0), (UNTIL_CLOSED, 200)],
)
def test_a_broken_connection_is_an_error_unless_the_close_ends_the_body(received: bytes, status: int) -> None:
    connection, statuses, _ = connected()
    connection.send(b"request")
    if received:
        connection.data_received(received)
    connection.connection_lost(None)
    if received == PLAIN[:-1]:
        assert statuses == [0]
    assert statuses == [status]


def test_what_a_closed_connection_still_gets_is_not_reported() -> None:
    connection, statuses, bodies = connected()
    connection.send(b"request")
    connection.close()
    connection.data_received(PLAIN)
    connection.connection_lost(None)
    assert (statuses, bodies, connection.open) == ([], [], False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [300, payloads.PLAIN_BYTES, 70_000])
def test_a_chat_body_has_exactly_the_size_asked_for(size: int, stream: bool) -> None:
    assert len(payloads.chat_body(size, stream=stream)) == size


def test_a_size_that_is_too_small_is_refused_with_the_least() -> None:
    with pytest.raises(ValueError, match=r"10 bytes are too few .* least is \d+"):
        payloads.chat_body(10)
