"""From a file, the environment and flags to a Config, or to all the reasons why not.

Precedence: flag > environment > file > default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from steelyard.config.checks import findings, resolve_aliases
from steelyard.config.document import Document, KeyPath, Position, path_text, read_document
from steelyard.config.errors import ConfigError, Problem
from steelyard.config.explain import HIDDEN, message_of
from steelyard.config.schema import Config

CONFIG_VARIABLE = "STEELYARD_CONFIG"
"""Names the file where no path is given."""
TOKEN_VARIABLE = "STEELYARD_ADMIN_TOKEN"
"""Holds what the admin API asks for, where it can be reached from other machines."""
HOSTS_VARIABLE = "STEELYARD_ADMIN_HOSTS"
"""Holds further names that the Host header of an admin request may have."""


class Setting(NamedTuple):
    """A key that has a flag, and a variable of the environment."""

    path: str
    flag: str
    variable: str


SETTINGS: tuple[Setting, ...] = (
    Setting("listen", "--listen", "STEELYARD_LISTEN"),
    Setting("admin", "--admin", "STEELYARD_ADMIN"),
    Setting("nodes", "--node", "STEELYARD_NODE"),
    Setting("defaults.policy", "--policy", "STEELYARD_POLICY"),
    Setting("defaults.memory", "--memory", "STEELYARD_MEMORY"),
    Setting("telemetry.interval", "--telemetry-interval", "STEELYARD_TELEMETRY_INTERVAL"),
    Setting("response_headers", "--response-headers", "STEELYARD_RESPONSE_HEADERS"),
    Setting("access_log", "--access-log", "STEELYARD_ACCESS_LOG"),
    Setting("shutdown.delay", "--shutdown-delay", "STEELYARD_SHUTDOWN_DELAY"),
    Setting("shutdown.grace", "--shutdown-grace", "STEELYARD_SHUTDOWN_GRACE"),
)
"""What `steelyard serve` can be told without a file. STEELYARD_NODE holds URLs with commas or spaces between them."""

# Shorter secrets are hidden where they stand; looking for them everywhere would blacken innocent words.
_SHORTEST_SEARCHED = 8


def load(
    path: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The configuration of a gateway.

    ``path`` is the YAML file; None takes the file that STEELYARD_CONFIG names, or none at all. ``overrides`` are
    the flags, by the path of the key they set: {"listen": "0.0.0.0:80", "defaults.policy": "random",
    "nodes": ["http://a:8000"]}; None and empty lists count as not given. ``environ`` is the environment, os.environ
    by default.

    Raises ConfigError with every problem that was found, in the order of the file.
    """
    environ = os.environ if environ is None else environ
    path = path or environ.get(CONFIG_VARIABLE) or None
    document = Document() if path is None else read_document(path, environ)
    for setting in SETTINGS:
        given = environ.get(setting.variable)
        if given:
            value: Any = given.replace(",", " ").split() if setting.path == "nodes" else given
            _override(document, setting.path, value, setting.variable)
    flags = {setting.path: setting.flag for setting in SETTINGS}
    for key, value in (overrides or {}).items():
        if value is not None and value != [] and value != ():
            _override(document, key, value, flags.get(key, key))
    return validate(document, path or "steelyard")


def validate(document: Document, source: str) -> Config:
    """The Config that ``document`` describes. ``source`` is named where nothing else can be. Raises ConfigError."""
    found: dict[tuple[KeyPath, str], None] = {}
    config: Config | None = None
    try:
        config = Config.model_validate(document.values)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            kind = details["type"]
            # The reason of these is another problem in the list; a list without its wrong items counts as too short.
            if kind == "default_factory_not_called" or (kind == "too_short" and details["input"]):
                continue
            where = tuple(key for key in details["loc"] if key != "[key]")
            found[where, message_of(details, where, document.is_secret(where))] = None
    found.update(dict.fromkeys(findings(document)))
    if found or config is None:
        problems = [_problem(document, source, where, message) for where, message in found]
        raise ConfigError(sorted(problems, key=lambda problem: problem.line))
    return config.model_copy(update={"aliases": resolve_aliases(config.aliases)})


def _override(document: Document, key: str, value: Any, source: str) -> None:
    """Put ``value`` in the place of whatever ``document`` has at ``key``."""
    path: KeyPath = tuple(key.split("."))
    if key == "nodes":
        value = [{"url": node} if isinstance(node, str) else node for node in value]
    section = document.values
    for part in path[:-1]:
        inner = section.setdefault(str(part), {})
        if not isinstance(inner, dict):  # the schema will say that it should be one
            return
        section = inner
    section[str(path[-1])] = value
    for known in [known for known in document.positions if known[: len(path)] == path]:
        del document.positions[known]
    document.secret_paths = {known for known in document.secret_paths if known[: len(path)] != path}
    document.positions[path] = Position(source)


def _problem(document: Document, source: str, path: KeyPath, message: str) -> Problem:
    for value in document.secret_values:
        if len(value) >= _SHORTEST_SEARCHED:
            message = message.replace(value, HIDDEN)
    position = document.position(path)
    if position is None:
        return Problem(source, 0, path_text(path), message)
    # A flag or a variable says by its name which key is meant.
    return Problem(position.source, position.line, path_text(path) if position.line else "", message)
