"""The Fleet: all nodes, and the lists of candidates that decisions start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from steelyard.core.eligibility import base_model, latest, serves, serves_base, speaks
from steelyard.core.node import Event, Node, NodeSpec, State

SLOW_START_SECONDS: Final = 30.0
"""How long a node that joins a running fleet takes to count in full. Its caches are cold; Envoy's and HAProxy's users
set 30 s to 60 s."""
SLOW_START_SHARE: Final = 0.1
"""What it counts at first: never zero, or it would never be tried. Envoy's minimum weight."""
CACHED_LISTS: Final = 1024
"""Candidate lists kept. Names that no node has share one list, so this binds no real fleet."""
UNNAMED: Final = "\0"
"""Stands for every model that no node names."""


class Fleet:
    """The nodes by name, their lifecycle, and the candidates for a (dialect, model, version).

    A candidate list is one object until the fleet changes: policies may key what they derive on its identity.
    """

    def __init__(self, aliases: Mapping[str, str] | None = None) -> None:
        self.nodes: dict[str, Node] = {}
        self.generation = 0
        """Raised whenever a candidate list may have changed."""
        self.aliases: dict[str, str] = dict(aliases or {})
        """Model name that clients use -> model name that nodes serve; chains are already resolved."""
        self.ramping: set[Node] = set()
        """Nodes in slow start."""
        self._candidates: dict[tuple[str, str | None, str | None], list[Node]] = {}
        self._named: tuple[set[str], set[str]] | None = None
        """The models and the versions that nodes name; None until asked for."""
        self._first_ready: float | None = None
        """When the first node ever became ready."""

    def add(self, spec: NodeSpec) -> Node:
        """A new node, `joining`. Raises ValueError when the name is taken."""
        if spec.name in self.nodes:
            raise ValueError(f"a node named {spec.name} exists already")
        node = self.nodes[spec.name] = Node(spec)
        self.changed()
        return node

    def reconfigure(self, node: Node, spec: NodeSpec) -> None:
        """A changed spec for a known node of the same address."""
        node.reconfigure(spec)
        self.changed()

    def withdraw(self, node: Node, now: float) -> None:
        """The node is no longer wanted: it drains, and its name is free for another at once."""
        node.leaving = True
        if self.nodes.get(node.name) is node:
            del self.nodes[node.name]
        if node.state is not State.GONE:
            self.apply(node, Event.DRAIN, now)
        self.changed()

    def recognised(self, node: Node, engine: str, models: Iterable[str] | None) -> None:
        """What the node told of itself. What its spec says wins."""
        found = node.spec.models if node.spec.models is not None else (None if models is None else frozenset(models))
        if node.spec.engine != "auto":
            engine = node.spec.engine
        if engine != node.engine or found != node.models:
            node.engine = engine
            node.models = found
            self.changed()

    def apply(self, node: Node, event: Event, now: float) -> bool:
        """Let something happen to a node; True when its state changed."""
        before = node.state
        if not node.apply(event):
            return False
        if node.state is State.READY:
            self._start_slowly(node, before, now)
        elif before is State.READY:
            self.ramping.discard(node)
        if node.state is State.GONE and self.nodes.get(node.name) is node:
            del self.nodes[node.name]
        self.changed()
        return True

    def _start_slowly(self, node: Node, before: State, now: float) -> None:
        # Only beside others that serve already: the first nodes of a fleet, and those that come up within one
        # slow start of the first, have nobody to leave the work to.
        node.ready_since = now
        if self._first_ready is None:
            self._first_ready = now
        elif now - self._first_ready >= SLOW_START_SECONDS or before is State.DOWN:
            self.ramping.add(node)

    def share(self, node: Node, now: float) -> float:
        """How much a node in slow start counts at `now`, 0.1 to 1; it leaves `ramping` when it counts in full."""
        since = node.ready_since
        share = 1.0 if since is None else max(SLOW_START_SHARE, (now - since) / SLOW_START_SECONDS)
        if share >= 1.0:
            self.ramping.discard(node)
            return 1.0
        return share

    def changed(self) -> None:
        """Forget what was derived from the nodes."""
        self.generation += 1
        self._candidates.clear()
        self._named = None

    def candidates(self, dialect: str, model: str | None, version: str | None) -> list[Node]:
        """The ready nodes that speak the dialect, serve the model in that version, and take new traffic."""
        found = self._candidates.get((dialect, model, version))
        return self._look_up(dialect, model, version) if found is None else found

    def _look_up(self, dialect: str, model: str | None, version: str | None) -> list[Node]:
        # Names come from clients: those that no node has must not fill the cache, nor cost a search each.
        if self._named is None:
            nodes = self.nodes.values()
            self._named = (
                {name for node in nodes for name in node.models or ()},
                {node.version for node in nodes if node.version is not None},
            )
        models, versions = self._named
        if version is not None and version not in versions:
            return []
        if model is not None and model not in models and latest(model) not in models:
            base = base_model(model)
            model = UNNAMED if base is None or base not in models else f"{base}:{UNNAMED}"
        key = (dialect, model, version)
        found = self._candidates.get(key)
        if found is None:
            found = self._find(dialect, model, version)
            if len(self._candidates) < CACHED_LISTS:
                self._candidates[key] = found
        return found

    def _find(self, dialect: str, model: str | None, version: str | None) -> list[Node]:
        found = [
            node
            for node in self.nodes.values()
            if node.state is State.READY
            and node.weight > 0
            and speaks(node.engine, dialect)
            and (version is None or node.version == version)
        ]
        exact = [node for node in found if serves(node, model)]
        return exact or [node for node in found if serves_base(node, model)]

    def having(self, dialect: str, model: str | None) -> list[Node]:
        """The nodes of any state, version and weight that speak the dialect and serve the model."""
        spoken = [node for node in self.nodes.values() if speaks(node.engine, dialect)]
        exact = [node for node in spoken if serves(node, model)]
        return exact or [node for node in spoken if serves_base(node, model)]

    def models(self) -> dict[str, list[Node]]:
        """Every model that some node of any state is known to serve, and by which; aliases are not in it."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            for model in node.models or ():
                found.setdefault(model, []).append(node)
        return found

    def versions(self, model: str | None) -> list[str]:
        """The versions that nodes of any state have of a model, sorted."""
        return sorted({node.version for node in self.nodes.values() if node.version and serves(node, model)})
