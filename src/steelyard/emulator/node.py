"""One emulated node: a listener, an engine, and what is wrong with it."""

from __future__ import annotations

import asyncio
import errno
import random
import time
from collections.abc import Callable

from steelyard.emulator.clock import EmulatedClock
from steelyard.emulator.control import PREFIX, answer_control
from steelyard.emulator.engines import make_engine
from steelyard.emulator.engines.base import Refusal
from steelyard.emulator.exchange import Exchange
from steelyard.emulator.execution import Execution, NodeStats
from steelyard.emulator.faults import Faults
from steelyard.emulator.http import HttpConnection
from steelyard.emulator.profile import EmulatorError, NodeProfile

# A burst of connections must wait in the kernel and not be refused (net.core.somaxconn is 4096 on Linux).
BACKLOG = 4096
RESTART_PAUSE = 0.1  # real seconds between two attempts to listen again
_CONTROL = PREFIX.encode()


class EmulatedNode:
    """A node of a fleet. ``stats``, ``engine.card`` and ``faults`` may be read at any time."""

    def __init__(
        self,
        profile: NodeProfile,
        clock: EmulatedClock,
        *,
        host: str = "127.0.0.1",
        seed: int = 0,
        sibling: Callable[[str], EmulatedNode | None] | None = None,
    ) -> None:
        self.profile = profile
        self.name = profile.name
        self.clock = clock
        self.host = host
        self.port = profile.port
        self.seed = seed
        self.faults = Faults()
        self.stats = NodeStats()
        self.connections: set[HttpConnection] = set()
        self.created = int(time.time())
        self.sibling = sibling or (lambda name: self if name == self.name else None)
        try:
            self.engine = make_engine(self)
        except ValueError as error:
            raise EmulatorError(f"node {profile.name}: {error}") from None
        # Its own stream of chance: what other nodes do does not change which of its requests stall.
        self._rng = random.Random(f"{seed}/{profile.name}")
        self._head = f"x-emulated-node: {profile.name}\r\n".encode("latin-1")
        self._executions = 0
        self._held: set[Exchange] = set()
        self._frozen: dict[str, bytes] = {}
        self._server: asyncio.Server | None = None
        self._recovery: asyncio.TimerHandle | None = None
        self._recovering: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def listening(self) -> bool:
        return self._server is not None

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen; raises EmulatorError when the port cannot be had."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: HttpConnection(self), self.host, self.port, backlog=BACKLOG, reuse_address=True
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise EmulatorError(
                    f"port {self.port} of {self.host} is in use (node {self.name}); "
                    "choose another port, or 0 for a free one"
                ) from None
            raise EmulatorError(
                f"node {self.name} cannot listen on {self.host} port {self.port}: {error.strerror or error}"
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._recovery is not None:
            self._recovery.cancel()
        if self._recovering is not None:
            self._recovering.cancel()
            await asyncio.wait([self._recovering])
        self._stop("fin")
        await asyncio.sleep(0)  # lets the transports close

    def set_faults(self, faults: Faults) -> None:
        """Replace what is wrong with the node; a hang or crash that is not in ``faults`` any more ends."""
        before, self.faults = self.faults, faults
        if faults.slow != before.slow:
            self.engine.set_speed(self.profile.speed / faults.slow)
        if faults.metrics == "frozen" and before.metrics != "frozen":
            self._frozen = {path: each.render() for path, each in self.engine.telemetry.items()}
        if faults.hang != before.hang:
            self._release()
        if faults.crash and not before.crash:
            self.crash()
            if faults.recover_after is not None:
                self._recovery = self.clock.call_later(faults.recover_after, self.recover)
        elif before.crash and not faults.crash:
            self._come_back()

    def crash(self) -> None:
        """The process dies: the listener closes, every connection is reset, all work and memory is lost."""
        self.engine.clear()
        self._stop("rst")

    def recover(self) -> None:
        """The process is back on the same port, healthy and empty. Returns at once; see ``listening``."""
        self.set_faults(Faults())

    def _come_back(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None
        if self._server is None and self._recovering is None:
            self._recovering = asyncio.get_running_loop().create_task(self._listen_again())

    async def _listen_again(self) -> None:
        while True:
            try:
                await self.start()
            except EmulatorError:
                # Someone took the port meanwhile: like a supervisor, try until it is free.
                await asyncio.sleep(RESTART_PAUSE)
            else:
                self._recovering = None
                return

    def _stop(self, how: str) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.crash(how)
        self._held.clear()

    def _release(self) -> None:
        """A hang has ended: read, compute and send what waited."""
        held, self._held = self._held, set()
        for exchange in held:
            exchange.release()
        if self.faults.hang != "accept":
            for connection in list(self.connections):
                connection.hear_again()

    # -- requests ------------------------------------------------------------------------------------------------

    def hears(self, data: bytes) -> bool:
        """Under hang "accept" nothing is read but the control endpoints."""
        return self.faults.hang != "accept" or b" " + _CONTROL in data[:64]

    def is_control(self, target: bytes) -> bool:
        """The control endpoints work whatever is wrong."""
        return target.startswith(_CONTROL)

    def handle(self, exchange: Exchange) -> None:
        """Answer a request: control, faults, telemetry, then the engine."""
        exchange.head = self._head
        request = exchange.request
        if request.path.startswith(PREFIX):
            answer_control(self, exchange)
            return
        faults = self.faults
        if faults.health is not None and request.path in self.engine.health_paths:
            exchange.answer(faults.health, b"", "")
            return
        telemetry = self.engine.telemetry.get(request.path)
        if telemetry is not None and request.method in ("GET", "HEAD"):
            if faults.metrics == "missing":
                self.engine.refuse(exchange, Refusal(404, "Not Found"))
            else:
                text = self._frozen[request.path] if faults.metrics == "frozen" else telemetry.render()
                exchange.answer(200, text, telemetry.content_type)
            return
        self.engine.handle(exchange)

    def begin(self, exchange: Exchange) -> Execution | None:
        """A request for work has come: count it and arm the faults. None when a fault has answered it already."""
        self._executions += 1
        request = exchange.request
        id = f"{self.name}-{self._executions:06}"
        execution = Execution(id, request.headers.get("x-request-id", ""), request.path, self.clock.now())
        exchange.head = self._head + f"x-emulated-execution: {id}\r\n".encode("latin-1")
        self.stats.begin(execution)

        def first_byte() -> None:
            execution.first_byte_at = self.clock.now()

        def closed(how: str) -> None:
            self._held.discard(exchange)
            execution.status = exchange.status
            self.stats.end(execution, how, self.clock.now())
            on_lost, execution.on_lost = execution.on_lost, None
            if on_lost is not None and how != "sent":
                on_lost()

        exchange.on_first_byte = first_byte
        exchange.on_closed = closed
        faults = self.faults
        if faults.hang in ("headers", "mid"):
            exchange.hold_after = 0 if faults.hang == "headers" else faults.hang_after
            self._held.add(exchange)
        exchange.cut_after = faults.cut_after
        exchange.cut_how = faults.how
        if faults.status is not None and self._rng.random() < faults.status.probability:
            self.engine.refuse(exchange, Refusal(faults.status.code, "injected fault"))
            return None
        return execution

    def draw_stall(self) -> float:
        """Emulated seconds that this request stalls before its work: 0 unless the fault strikes."""
        stall = self.faults.stall
        if stall is not None and self._rng.random() < stall.probability:
            return stall.seconds
        return 0.0
