"""One gateway process, wired together: the decisions, the data path, the checks of nodes, the admin listener."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import tempfile
import time
from random import Random

import structlog

from steelyard.admin.listener import AdminListener
from steelyard.config.build import check_node_tls, listener_tls, node_specs, settings
from steelyard.config.errors import ConfigError
from steelyard.config.schema import Config
from steelyard.core.balancer import Balancer
from steelyard.core.fleet import Fleet
from steelyard.core.node import Node, NodeSpec
from steelyard.proxy.access_log import AccessLog
from steelyard.proxy.gateway import Gateway
from steelyard.proxy.listener import Listener
from steelyard.proxy.spill import SpillFile
from steelyard.telemetry.health import HealthChecks

STOP_POLL_SECONDS = 0.05
"""How often a draining gateway looks whether its last request has ended."""
GARBAGE_THRESHOLD = 20_000
"""Objects made and not freed before the youngest are looked through: about what 300 new streams hold. The default, 700,
costs a few percent of a request's time and finds nothing."""
LAST_BYTES_SECONDS = 1.0
"""For the last words to those who are cut off."""
RESERVED_DESCRIPTORS = 64
"""Kept for logs, listeners, the loop itself and the admin's connections."""


NEEDS_RESTART = ("listen", "admin", "access_log")
"""Keys whose change a reload cannot take over: what they name is open."""


class CannotStart(OSError):
    """Something that the gateway needs cannot be had; the message says what, and why."""


class AddressInUse(CannotStart):
    """A listener's address cannot be had; the message says which, and why."""


class Service:
    """A running gateway. `start`, then `drain` or `stop`; `reload` in between."""

    def __init__(self, config: Config, rng: Random | None = None) -> None:
        self.config = config
        self.started_at = time.time()
        self._rng = rng if rng is not None else Random()
        self._log = structlog.get_logger("steelyard")
        self._listener: Listener | None = None
        self._admin: AdminListener | None = None
        self.gateway: Gateway
        self.health: HealthChecks

    async def start(self) -> None:
        """Listen, and begin to check the nodes. Raises CannotStart, or ConfigError."""
        config = self.config
        tls = listener_tls(config)
        check_node_tls(config)
        loop = asyncio.get_running_loop()
        limit = raise_descriptor_limit()
        fleet = Fleet(config.aliases)
        balancer = Balancer(fleet, self._rng)
        try:
            SpillFile(config.limits.body_directory or "").close()
        except OSError as error:
            where = repr(config.limits.body_directory or tempfile.gettempdir())
            raise CannotStart(f"cannot hold large requests in {where}: {reason(error)}") from None
        try:
            log = open_access_log(config.access_log)
        except OSError as error:
            raise CannotStart(f"cannot write the access log {config.access_log!r}: {reason(error)}") from None
        self.gateway = Gateway(balancer, settings(config), log, loop)
        self.gateway.descriptors = limit - RESERVED_DESCRIPTORS
        self.health = HealthChecks(self.gateway, config.telemetry.interval)
        self._listener = Listener(self.gateway, tls)
        try:
            if config.listen.path is not None:
                await self._listener.start_unix(config.listen.path)
            else:
                await self._listener.start(config.listen.host, config.listen.port)
        except OSError as error:
            self.gateway.log.close()
            raise AddressInUse(f"cannot listen on {config.listen}: {reason(error)}") from None
        self._admin = AdminListener(self)
        try:
            await self._admin.start(config.admin.host, config.admin.port)
        except (OSError, ConfigError) as error:
            self._listener.close()
            self.gateway.log.close()
            if isinstance(error, ConfigError):
                raise
            raise AddressInUse(f"cannot listen on {config.admin} (admin): {reason(error)}") from None
        self.gateway.start()
        calm_garbage_collector()
        for spec in node_specs(config):
            self.health.watch(fleet.add(spec))

    @property
    def port(self) -> int:
        """The port of the data plane (of interest when the configured one is 0)."""
        assert self._listener is not None
        return self._listener.port

    @property
    def admin_port(self) -> int:
        assert self._admin is not None
        return self._admin.port

    async def wait_ready(self, timeout: float) -> bool:
        """Wait until a node is ready to serve; False when none is within `timeout` seconds."""
        deadline = self.gateway.clock() + timeout
        while not self.gateway.ready:
            if self.gateway.clock() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    def reload(self, config: Config) -> None:
        """Take over another configuration. What is unrelated to the changes goes on undisturbed.

        Raises ConfigError, with nothing changed, when a file that it names cannot be used.
        """
        old = self.config
        tls = listener_tls(config)
        check_node_tls(config)
        if (tls is None) != (not old.certificates):
            self._log.warning("this change needs a restart", key="certificates")
            config = config.model_copy(update={"certificates": old.certificates})
        elif tls is not None and self._listener is not None:
            self._listener.tls = tls
        # Those keys stay as they are, also in what the gateway says of its configuration.
        self.config = config.model_copy(update={name: getattr(old, name) for name in NEEDS_RESTART})
        for name in NEEDS_RESTART:
            if getattr(old, name) != getattr(config, name):
                self._log.warning("this change needs a restart", key=name, still=str(getattr(old, name)))
        gateway = self.gateway
        gateway.use(settings(config, gateway.settings))
        self.health.interval = config.telemetry.interval
        fleet = gateway.balancer.fleet
        fleet.aliases = dict(config.aliases)
        wanted = {spec.name: spec for spec in node_specs(config)}
        for node in list(fleet.nodes.values()):
            spec = wanted.pop(node.name, None)
            if spec is None:
                fleet.withdraw(node, gateway.clock())
            elif spec.url != node.spec.url:
                # Another server under the same name: clean state.
                fleet.withdraw(node, gateway.clock())
                self._join(spec)
            elif spec != node.spec:
                self._reconfigure(node, spec)
            elif spec.tls is not None and node in gateway.upstreams:
                # Its files may be others now.
                gateway.upstreams[node].describe()
        for spec in wanted.values():
            self._join(spec)
        gateway.balancer.serve_line(gateway.clock())
        self._log.info("configuration reloaded", nodes=len(fleet.nodes), routes=len(gateway.settings.routes))

    def _reconfigure(self, node: Node, spec: NodeSpec) -> None:
        fleet, upstream = self.gateway.balancer.fleet, self.gateway.upstreams.get(node)
        engine, models = node.engine, node.models
        asked_before, asked_now = asked(node.spec), asked(spec)
        fleet.reconfigure(node, spec)
        # What was known holds until the node has answered again: with nothing known it would get every request.
        fleet.recognised(node, engine, models)
        if asked_before != asked_now:
            self.health.look_again(node)
        if upstream is not None:
            upstream.describe()

    def _join(self, spec: NodeSpec) -> Node:
        node = self.gateway.balancer.fleet.add(spec)
        self.health.watch(node)
        return node

    async def drain(self, delay: float | None = None) -> bool:
        """End gracefully: not ready, go on accepting for a while, then finish what is under way.

        True when every request had its end; False when the grace passed before.
        """
        gateway = self.gateway
        gateway.ready = False
        gateway.draining = True
        delay = gateway.settings.drain_delay if delay is None else delay
        self._log.info("draining", delay=delay, grace=gateway.settings.drain_grace, under_way=len(gateway.exchanges))
        await asyncio.sleep(delay)
        if self._listener is not None:
            self._listener.close()
        deadline = gateway.clock() + gateway.settings.drain_grace
        while gateway.exchanges and gateway.clock() < deadline:
            await asyncio.sleep(STOP_POLL_SECONDS)
        # The last answers are written, but a slow reader may not have them yet.
        gateway.close_idle_clients()
        complete = not gateway.exchanges
        if complete:
            complete = await self._clients_gone(max(deadline, gateway.clock() + LAST_BYTES_SECONDS))
        if not complete:
            self._log.warning("the grace is over", cut=len(gateway.exchanges), unread=len(gateway.clients))
        await self.stop()
        return complete

    async def stop(self) -> None:
        """End now: what is under way is cut, and told so."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self.health.close()
        self.gateway.cut()
        await self._clients_gone(self.gateway.clock() + LAST_BYTES_SECONDS)
        self.gateway.stop()
        if self._admin is not None:
            await self._admin.close()
            self._admin = None

    async def _clients_gone(self, deadline: float) -> bool:
        """Wait until the last client connection is closed; False when the deadline passes before."""
        gateway = self.gateway
        while gateway.clients and gateway.clock() < deadline:
            await asyncio.sleep(STOP_POLL_SECONDS)
        return not gateway.clients


def asked(spec: NodeSpec) -> tuple[object, ...]:
    """What the answers of a node about itself depend on."""
    return spec.engine, spec.models, spec.api_key


def reason(error: OSError) -> str:
    """What the system says, without what the library puts around it."""
    if isinstance(error, socket.gaierror):
        # Its numbers are those of the resolver, not of the system.
        return (error.strerror or str(error)).lower()
    return os.strerror(error.errno).lower() if error.errno else str(error)


def calm_garbage_collector() -> None:
    """What is alive now stays alive, and requests leave no cycles behind: look for garbage less often."""
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)


def open_access_log(target: str) -> AccessLog:
    """The access log for `access_log` of the configuration: stderr, stdout, off, or a file to append to.

    Raises OSError when the file cannot be had.
    """
    if target == "off":
        return AccessLog(None)
    if target in ("stderr", "stdout"):
        return AccessLog.to_descriptor(2 if target == "stderr" else 1)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    if sys.platform == "win32":
        return AccessLog.to_descriptor(os.open(target, flags, 0o640))
    # To open a pipe that nobody reads would wait for a reader, for ever.
    descriptor = os.open(target, flags | os.O_NONBLOCK, 0o640)
    os.set_blocking(descriptor, True)
    return AccessLog.to_descriptor(descriptor)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it: every request needs two."""
    if sys.platform == "win32":
        return 1 << 20
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return soft
        return hard
    return soft
