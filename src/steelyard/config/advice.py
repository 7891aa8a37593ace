"""What is allowed, and yet probably not what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from steelyard.config.build import routes_of
from steelyard.config.load import CONFIG_VARIABLE, HOSTS_VARIABLE, SETTINGS, TOKEN_VARIABLE
from steelyard.config.schema import Config

PREFIX = "STEELYARD_"
VARIABLES = (CONFIG_VARIABLE, TOKEN_VARIABLE, HOSTS_VARIABLE, *(setting.variable for setting in SETTINGS))
"""All variables that `steelyard serve` reads."""


def advice(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """One line for each doubt about a configuration that is right, or about the environment it is served in."""
    yield from _misspelt(environ)
    yield from _unweighed(config)


def _misspelt(environ: Mapping[str, str]) -> Iterator[str]:
    # Others are let alone: Kubernetes itself sets STEELYARD_PORT and the like for a service of that name.
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.9)
            if near:
                yield f"the variable {name} is not read; did you mean {near[0]}?"


def _unweighed(config: Config) -> Iterator[str]:
    """Memory that is to be watched, and of which no request is known to take any."""
    enforced = any(route.settings(config.defaults).memory == "enforce" for route in routes_of(config))
    told = config.trust.proxies or any(row.memory for route in config.routes for row in route.footprints)
    if enforced and not told and any(node.gpu_memory for node in config.nodes):
        yield (
            "gpu_memory and memory: enforce veto nothing: no route has footprints that say the memory of a request, so "
            "it counts as 0"
        )
