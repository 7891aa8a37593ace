"""What the contract has and this release does not. Delete the row with the feature."""

from __future__ import annotations

NOT_AVAILABLE: dict[str, str] = {
    "secret": "",
    "discovery": "; list the nodes under nodes:",
    "edge": "",
    "stores": "",
    "defaults.affinity.ttl": "",
    "defaults.affinity.mode": "",
    "defaults.outlier": "",
    "nodes[].metrics_url": "; metrics of nodes are not read yet",
    "routes[].affinity.ttl": "",
    "routes[].affinity.mode": "",
    "routes[].outlier": "",
    "routes[].weights": "",
    "routes[].context": "",
    "routes[].versions": "",
}
"""Keys that are known and refused (a key that did nothing would be worse), and what to do instead."""

POLICIES_NOT_AVAILABLE = frozenset({"tiered-weights", "window-latency", "prefix"})
"""The same for policies."""

ENGINES_NOT_AVAILABLE = {"tfserving": "; generic relays its requests without weighing them"}
"""The same for engines, and what to do instead."""

CHOICES_NOT_AVAILABLE = POLICIES_NOT_AVAILABLE | ENGINES_NOT_AVAILABLE.keys()
"""Both, for whoever lists what can be written."""


def is_available(path: str) -> bool:
    """Whether the key at ``path`` (`routes[].context.ttl`), and every key that it is part of, can be used."""
    return not any(path == row or path.startswith((row + ".", row + "[")) for row in NOT_AVAILABLE)
