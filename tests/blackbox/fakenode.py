"""A node that a test controls byte by byte."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.blackbox.wire import Message, Peer

CHECKS = ("/health", "/v1/models", "/v2", "/sdapi/v1/sd-models", "/internal/ping", "/metrics", "/prompt")
"""What a gateway asks on its own account (GET); these are not in `log`."""


@dataclass
class Answer:
    """How the node answers. The default is a small plain chat completion."""

    status: int = 200
    reason: str = "OK"
    headers: Sequence[tuple[str, str]] = (("Content-Type", "application/json"),)
    body: bytes = (
        b'{"id":"c-1","object":"chat.completion","model":"m","choices":[],'
        b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}'
    )
    chunks: Sequence[bytes] | None = None
    """The body in pieces, with `gap` seconds between them."""
    framing: str = "length"
    """length, chunked or close (until the end of the connection)."""
    ttft: float = 0.0
    """Seconds until the head."""
    gap: float = 0.0
    cut_after: int | None = None
    """Break off after so many pieces of the body (-1: before the head)."""
    cut: str = "fin"
    """fin or rst."""
    hang: str | None = None
    """`headers`: say nothing; `mid`: say nothing more after the first piece."""
    raw: bytes | None = None
    """Exactly these bytes instead of all that."""
    last_chunk: bytes = b"0\r\n\r\n"

    def pieces(self) -> list[bytes]:
        return list(self.chunks) if self.chunks is not None else [self.body]

    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {self.reason}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.framing == "length":
            lines.append(f"Content-Length: {sum(map(len, self.pieces()))}")
        elif self.framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def sse(*events: object, done: bool = True) -> list[bytes]:
    """The pieces of an OpenAI stream: one event each."""
    pieces = [b"data: %b\n\n" % json.dumps(event).encode() for event in events]
    return [*pieces, b"data: [DONE]\n\n"] if done else pieces


def delta(text: str, model: str = "m") -> dict[str, object]:
    """One event of a chat stream."""
    return {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "model": model,
        "choices": [{"index": 0, "delta": {"content": text}}],
    }


def stream(*texts: str, **knobs: object) -> Answer:
    """A chat stream, chunked."""
    return Answer(
        headers=(("Content-Type", "text/event-stream"),),
        chunks=sse(*(delta(text) for text in texts or ("a", "b", "c"))),
        framing="chunked",
        **knobs,  # type: ignore[arg-type]
    )


class Received(Message):
    """A request at the node, and the means to answer it."""

    def __init__(self, node: FakeNode, peer: NodePeer) -> None:
        super().__init__(answer=False)
        self.node = node
        self.peer = peer
        self.at = asyncio.get_running_loop().time()
        self.aborted_at: float | None = None
        """When the connection ended before the answer was whole."""
        self.answered = False
        """The script has come to its end."""

    def send(self, data: bytes) -> None:
        self.peer.send(data)

    async def whole(self) -> bytes:
        """The body, when all of it is there."""
        await self.peer.until(lambda: self.complete or self.peer.ended, 50)
        return bytes(self.body)

    async def gone(self, patience: float = 10.0) -> None:
        """Wait until the gateway has given the connection up."""
        await self.peer.gone(patience)

    @property
    def json(self) -> dict[str, object]:
        found = json.loads(bytes(self.body))
        assert isinstance(found, dict)
        return found


Script = Callable[[Received], Awaitable[None]]


class NodePeer(Peer):
    """A connection at the node."""

    def __init__(self, node: FakeNode) -> None:
        super().__init__()
        self.node = node
        self.current: Received | None = None
        self.requests = 0
        self.switched = False
        """What comes is no HTTP any more, and stays in `buffer`."""
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.node.accepted += 1
        self.node.open.add(self)
        self.node.most_open = max(self.node.most_open, len(self.node.open))
        self._rest()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self.node.open.discard(self)
        super().connection_lost(exc)
        current = self.current
        if current is not None and not current.answered:
            current.aborted_at = asyncio.get_running_loop().time()

    def _rest(self) -> None:
        keepalive = self.node.keepalive
        if keepalive is not None:
            self._idle = asyncio.get_running_loop().call_later(keepalive, self.transport.close)

    def _advance(self) -> None:
        if self.switched:
            return
        if self.current is None:
            if not self.buffer:
                return
            self.current = Received(self.node, self)
        current = self.current
        began = bool(current.framing)
        try:
            current.feed(self.buffer)
        except AssertionError as error:
            self.node.problems.append(f"{error} in {bytes(self.buffer)!r} {current.raw_head!r}")
            self.transport.abort()
            return
        if current.complete and self.buffer:
            self.node.problems.append(f"the gateway sent more than its request: {bytes(self.buffer[:200])!r}")
        if current.framing and not began:
            self.requests += 1
            task = asyncio.get_running_loop().create_task(self.node.serve(current))
            self.node.tasks.add(task)
            task.add_done_callback(self.node.tasks.discard)

    def answered(self) -> None:
        """The answer to the current request is whole."""
        assert self.current is not None
        self.current.answered = True
        if not self.current.complete:
            # Answered before the request was whole: nothing can follow on this connection.
            self.transport.close()
            return
        self.current = None
        if not self.closed and not self.transport.is_closing():
            self._rest()
            self._advance()


class FakeNode:
    """An inference server on 127.0.0.1 whose every byte is the test's."""

    def __init__(
        self,
        answer: Answer | None = None,
        *,
        name: str = "node",
        models: Sequence[str] | None = ("m",),
        owner: str = "vllm",
        health: int = 200,
        keepalive: float | None = None,
        script: Script | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self.tls = tls
        self.models = models
        """None: it does not tell (404)."""
        self.owner = owner
        """`owned_by` of its models."""
        self.health = health
        self.keepalive = keepalive
        """Seconds after which an idle connection is closed."""
        self.answer = answer or Answer()
        self.answers: deque[Answer] = deque()
        """Taken first, one a request."""
        self.script = script
        """Answers instead of all that."""
        self.log: list[Received] = []
        """The requests (without the gateway's own checks), from their head on."""
        self.checks = 0
        self.accepted = 0
        self.open: set[NodePeer] = set()
        self.most_open = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.problems: list[str] = []
        """What the gateway did to the node that no gateway may do, and mistakes in scripts."""
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def executions(self) -> int:
        """Requests that came in whole: what was (or would have been) computed."""
        return sum(received.complete for received in self.log)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> FakeNode:
        """Listen, on the same port as before when it was stopped."""
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", self.port))
        self._server = await loop.create_server(lambda: NodePeer(self), sock=sock, backlog=4096, ssl=self.tls)
        self.port = sock.getsockname()[1]
        return self

    def refuse(self) -> None:
        """Stop listening and end every connection: from now on the port refuses."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in list(self.open):
            peer.rst()

    async def stop(self) -> None:
        self.refuse()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def forget(self) -> None:
        """Empty the log."""
        self.log.clear()

    # -- answering

    async def serve(self, received: Received) -> None:
        peer = received.peer
        try:
            if received.path in CHECKS or received.path == "/v2/repository/index":
                self.checks += 1
                self._check(received)
            else:
                self.log.append(received)
                if self.script is not None:
                    await self.script(received)
                else:
                    await received.whole()
                    await play(received, self.answers.popleft() if self.answers else self.answer)
            if peer.transport.is_closing() and not peer.ended:
                received.answered = True  # by breaking off
            elif not peer.ended:
                peer.answered()
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:
            self.problems.append(f"script of {self.name}: {error!r}")

    def _check(self, received: Received) -> None:
        path = received.path
        found: object = None
        if path == "/health":
            status = self.health
        elif path == "/v1/models" and self.models is not None:
            status = 200
            found = {
                "object": "list",
                "data": [{"id": m, "object": "model", "owned_by": self.owner} for m in self.models],
            }
        elif path == "/internal/ping" and self.owner == "sdwebui":
            status, found = self.health, {}
        elif path == "/sdapi/v1/sd-models" and self.owner == "sdwebui":
            status, found = 200, [{"model_name": m, "title": m} for m in self.models or ()]
        else:
            status = 404
        body = b"" if found is None else json.dumps(found).encode()
        received.send(b"HTTP/1.1 %d Checked\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))


async def play(received: Received, answer: Answer) -> None:
    """Answer as the knobs say. Returns when the answer is whole, or the connection at its end."""
    peer = received.peer
    if answer.ttft:
        await sleep_unless_gone(peer, answer.ttft)
    if answer.hang == "headers":
        await peer.gone(50)
        return
    if answer.raw is not None:
        received.send(answer.raw)
        return
    if answer.cut_after == -1:
        _cut(peer, answer)
        return
    received.send(answer.head())
    if received.method == "HEAD" or answer.status in (204, 304):
        return
    for number, piece in enumerate(answer.pieces()):
        if answer.cut_after == number:
            _cut(peer, answer)
            return
        if number and answer.gap:
            await sleep_unless_gone(peer, answer.gap)
        if answer.framing == "chunked":
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
        await peer.send_gently(piece)
        if answer.hang == "mid":
            await peer.gone(50)
            return
    if answer.cut_after is not None:
        _cut(peer, answer)
    elif answer.framing == "chunked":
        received.send(answer.last_chunk)
    elif answer.framing == "close":
        peer.fin()


def _cut(peer: NodePeer, answer: Answer) -> None:
    if answer.cut == "rst":
        peer.rst()
    else:
        peer.fin()


async def sleep_unless_gone(peer: Peer, seconds: float) -> None:
    """Sleep; raises ConnectionResetError when the connection ends meanwhile."""
    try:
        await peer.gone(seconds)
    except TimeoutError:
        return
    raise ConnectionResetError("the gateway has gone")


__all__ = ["Answer", "FakeNode", "Received", "delta", "field", "play", "replace", "sse", "stream"]
