"""What a schema cannot say: features that are not in this release, names that occur twice, keys that contradict.

The checks read the values as they were written, not the validated models, so that they also speak when something
else is wrong: everybody wants all the problems at once. A value of the wrong kind is the schema's matter and passed
over here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from steelyard.config.addresses import UNIX, parse_address, parse_node_url
from steelyard.config.document import Document, KeyPath, path_text
from steelyard.config.explain import HIDDEN, show
from steelyard.config.release import ENGINES_NOT_AVAILABLE, NOT_AVAILABLE, POLICIES_NOT_AVAILABLE
from steelyard.config.schema import Config
from steelyard.config.units import parse_duration, parse_size

Finding = tuple[KeyPath, str]
"""A path and what is wrong there."""


def findings(document: Document) -> Iterator[Finding]:
    """Everything that is wrong with the values of ``document`` taken together."""
    for check in _CHECKS:
        yield from check(document)


def resolve_aliases(aliases: dict[str, str]) -> dict[str, str]:
    """Every alias with the model at the end of its chain. The chains must not be circular (see findings)."""
    resolved: dict[str, str] = {}
    for name in aliases:
        chain = []
        target = name
        while target in aliases and target not in resolved:
            chain.append(target)
            target = aliases[target]
        target = resolved.get(target, target)
        resolved.update(dict.fromkeys(chain, target))
    return {name: resolved[name] for name in aliases}


def _not_available(document: Document) -> Iterator[Finding]:
    for pattern, instead in NOT_AVAILABLE.items():
        for path, _ in _at(document.values, pattern):
            yield path, f"not available in this release{instead}"
    for pattern in ("defaults.policy", "routes[].policy"):
        for path, policy in _at(document.values, pattern):
            if isinstance(policy, str) and policy in POLICIES_NOT_AVAILABLE:
                yield path, f"the policy {policy} is not available in this release; the default is least-work"
    for path, engine in _at(document.values, "nodes[].engine"):
        if isinstance(engine, str) and engine in ENGINES_NOT_AVAILABLE:
            yield path, f"the engine {engine} is not available in this release{ENGINES_NOT_AVAILABLE[engine]}"


def _nodes(document: Document) -> Iterator[Finding]:
    nodes = document.values.get("nodes")
    if nodes is None or nodes == []:
        if "discovery" not in document.values:
            yield ("nodes",), "there are no nodes; write nodes: [{url: http://10.0.0.1:8000}], or give --node URL"
        return
    names: dict[str, KeyPath] = {}
    urls: dict[str, KeyPath] = {}
    for path, node in _at(document.values, "nodes[]"):
        if not isinstance(node, dict):
            continue
        name = node.get("name")
        name_path = (*path, "name") if "name" in node else (*path, "url")
        try:
            url = parse_node_url(node.get("url"))
        except ValueError:
            pass
        else:
            if name is None:
                name = url.authority
            if str(url) in urls:
                shown = _shown(document, (*path, "url"), node["url"])
                yield (*path, "url"), f"{shown} is the URL of {_place(document, urls[str(url)])} too; list a node once"
                # Without a name of its own it would be reported a second time, for the name made from the URL.
                continue
            urls[str(url)] = (*path, "url")
        if isinstance(name, str):
            if name in names:
                shown = _shown(document, name_path, name)
                yield name_path, f"{shown} is the name of {_place(document, names[name])} too; give each its own"
            names.setdefault(name, name_path)


def _tls(document: Document) -> Iterator[Finding]:
    for path, tls in _at(document.values, "nodes[].tls"):
        url = _one(document.values, (*path[:-1], "url"))
        if isinstance(url, str) and not url.strip().lower().startswith("https://"):
            yield path, f"is for https, but the url is {_shown(document, (*path[:-1], 'url'), url)}"
        if isinstance(tls, dict) and ("certificate" in tls) != ("private_key" in tls):
            yield path, "certificate and private_key belong together; write both, or none"
    admin = document.values.get("admin")
    if isinstance(admin, str) and admin.startswith(UNIX):
        yield ("admin",), "the admin API is served over TCP only; write e.g. 127.0.0.1:9901"


def _aliases(document: Document) -> Iterator[Finding]:
    aliases = document.values.get("aliases")
    if not isinstance(aliases, dict):
        return
    settled: set[str] = set()
    for name in aliases:
        chain: dict[str, None] = {}
        target: Any = name
        while isinstance(target, str) and target in aliases and target not in chain and target not in settled:
            chain[target] = None
            target = aliases[target]
        settled.update(chain)
        if isinstance(target, str) and target in chain:
            names = list(chain)
            circle = names[names.index(target) :]
            yield (
                ("aliases", circle[0]),
                f"goes in a circle: {' -> '.join([*circle, circle[0]])}; the last must be a model",
            )


def _routes(document: Document) -> Iterator[Finding]:
    names: dict[str, KeyPath] = {}
    matches_all: KeyPath | None = None
    for path, route in _at(document.values, "routes[]"):
        if not isinstance(route, dict):
            continue
        if matches_all is not None:
            yield path, f"is never reached: {_place(document, matches_all)} matches every request; put it last"
        name = route.get("name")
        if isinstance(name, str):
            if name in names:
                shown = _shown(document, (*path, "name"), name)
                yield (*path, "name"), f"{shown} is the name of {_place(document, names[name])} too; give each its own"
            names.setdefault(name, (*path, "name"))
        match = route.get("match", {})
        narrowed = not isinstance(match, dict) or match.get("models") or match.get("headers")
        if matches_all is None and not narrowed and match.get("path", "*") in ("*", "/*"):
            matches_all = path


def _keys(document: Document) -> Iterator[Finding]:
    seen: dict[str, KeyPath] = {}
    for path, key in _at(document.values, "auth.keys[].key"):
        if isinstance(key, str):
            if key in seen:
                yield path, f"is the same key as {_place(document, seen[key])}; one key belongs to one tenant"
            seen.setdefault(key, path)


def _listeners(document: Document) -> Iterator[Finding]:
    addresses = {}
    for key in ("listen", "admin"):
        try:
            addresses[key] = parse_address(document.values.get(key, Config.model_fields[key].default))
        except ValueError:
            return
    listen, admin = addresses["listen"], addresses["admin"]
    overlap = listen.host == admin.host or {listen.host, admin.host} & {"0.0.0.0", "::"}
    if listen.port == admin.port != 0 and overlap:
        path: KeyPath = ("admin",) if "admin" in document.values else ("listen",)
        port = _shown(document, path, admin.port)
        yield path, f"listen and admin both take port {port}; give each its own"


def _consistent_hash(document: Document) -> Iterator[Finding]:
    defaults = document.values.get("defaults")
    default_keys = _one(document.values, ("defaults", "affinity", "keys"))
    scopes: list[tuple[KeyPath, Any, Any]] = [(("defaults",), defaults, default_keys)]
    for path, route in _at(document.values, "routes[]"):
        keys = _one(document.values, (*path, "affinity", "keys"))
        scopes.append((path, route, default_keys if keys is None else keys))
    for path, scope, keys in scopes:
        if isinstance(scope, dict) and scope.get("policy") == "consistent-hash" and keys == []:
            yield (
                (*path, "policy"),
                "consistent-hash needs a session key, but affinity.keys is []; name at least one key",
            )


def _order(document: Document) -> Iterator[Finding]:
    """Pairs of which the one cannot be larger than the other, where both were written."""
    scopes: list[KeyPath] = [("defaults", "timeouts"), *((*p, "timeouts") for p, _ in _at(document.values, "routes[]"))]
    for scope in scopes:
        for small in ("connect", "first_byte", "idle"):
            yield from _not_above(document, (*scope, small), (*scope, "total"), parse_duration)
    yield from _not_above(document, ("limits", "body"), ("limits", "body_memory"), parse_size)


def _not_above(document: Document, small: KeyPath, large: KeyPath, parse: Callable[[Any], Any]) -> Iterator[Finding]:
    values = _one(document.values, small), _one(document.values, large)
    if None in values:
        return
    try:
        low, high = parse(values[0]), parse(values[1])
    except ValueError:
        return
    if low > high:
        shown = _shown(document, small, values[0])
        yield (
            small,
            f"{shown} is more than {large[-1]} ({_shown(document, large, values[1])}), and could never be reached",
        )


_CHECKS: tuple[Callable[[Document], Iterator[Finding]], ...] = (
    _not_available,
    _nodes,
    _tls,
    _aliases,
    _routes,
    _keys,
    _listeners,
    _consistent_hash,
    _order,
)


def _at(values: Any, pattern: str) -> list[tuple[KeyPath, Any]]:
    """The paths and values that ``pattern`` (`routes[].affinity.ttl`) meets."""
    found: list[tuple[KeyPath, Any]] = [((), values)]
    for part in pattern.split("."):
        key = part.removesuffix("[]")
        found = [((*path, key), value[key]) for path, value in found if isinstance(value, dict) and key in value]
        if part.endswith("[]"):
            found = [
                ((*path, index), item)
                for path, value in found
                if isinstance(value, list)
                for index, item in enumerate(value)
            ]
    return found


def _one(values: Any, path: KeyPath) -> Any:
    """The value at ``path``, or None."""
    for key in path:
        try:
            values = values[key]
        except (KeyError, IndexError, TypeError):
            return None
    return values


def _shown(document: Document, path: KeyPath, value: Any) -> str:
    return HIDDEN if document.is_secret(path) else show(value)


def _place(document: Document, path: KeyPath) -> str:
    """``path`` with its line: nodes[0] (line 4)."""
    position = document.position(path)
    of = path[:-1] if path and path[-1] in ("name", "url") else path
    return f"{path_text(of)} (line {position.line})" if position and position.line else path_text(of)
