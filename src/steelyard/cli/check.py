"""`steelyard check`: is this configuration right, and what does it mean?"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Annotated, Any

import typer

from steelyard.admin.access import Access
from steelyard.config.advice import advice
from steelyard.config.build import check_node_tls, listener_tls
from steelyard.config.errors import ConfigError
from steelyard.config.load import CONFIG_VARIABLE, load
from steelyard.config.schema import Config, NodeConfig
from steelyard.config.units import format_duration, format_share, format_size

DEFAULT_FILE = "steelyard.yaml"


def check(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help=f"The configuration. Default: what {CONFIG_VARIABLE} names, or {DEFAULT_FILE}.",
            show_default=False,
        ),
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a configuration instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a configuration means, or all that is wrong with it.

    Variables of the environment count as they do for serve. Exit code 0 when it is right, with warnings on stderr
    about what was probably not meant; 2 when it is wrong.
    """
    if schema:
        typer.echo(json.dumps(Config.model_json_schema(), indent=2))
        return
    path = file or os.environ.get(CONFIG_VARIABLE) or DEFAULT_FILE
    try:
        config = load(path)
        listener_tls(config)
        check_node_tls(config)
        doubts = list(advice(config, os.environ))
    except ConfigError as error:
        if not as_json:
            raise
        problems = [
            {"source": problem.source, "line": problem.line, "path": problem.path, "message": problem.message}
            for problem in error.problems
        ]
        typer.echo(json.dumps({"file": path, "valid": False, "problems": problems}, indent=2))
        raise typer.Exit(2) from None
    try:
        Access.of(os.environ, config.admin.host)
    except ConfigError as error:
        # Not wrong in itself: it may be served where the token is set.
        doubts += [f"{problem.path}: {problem.message}" for problem in error.problems]
    summary = summarise(config)
    if as_json:
        typer.echo(json.dumps({"file": path, "valid": True, "warnings": doubts, **summary}, indent=2))
        return
    typer.echo(f"{path} is valid")
    for line in _lines(config, summary):
        typer.echo(f"  {line}")
    for doubt in doubts:
        typer.echo(f"warning: {doubt}", err=True)


def summarise(config: Config) -> dict[str, Any]:
    """What ``config`` means, without any secret: for people and for machines."""
    routes = [
        {
            "name": route.name,
            "match": route.match.model_dump(exclude_defaults=True),
            "policy": route.settings(config.defaults).policy,
            "memory": route.settings(config.defaults).memory,
            "footprints": len(route.footprints),
        }
        for route in config.routes
    ]
    return {
        "listen": str(config.listen),
        "admin": str(config.admin),
        "tenants": sorted({key.tenant for key in config.auth.keys}),
        "nodes": [_node(node) for node in config.nodes],
        "routes": routes,
        "default_policy": config.defaults.policy,
        "aliases": config.aliases,
    }


def _node(node: NodeConfig) -> dict[str, Any]:
    return node.model_dump(mode="json", exclude={"api_key"}, exclude_none=True)


def _lines(config: Config, summary: dict[str, Any]) -> list[str]:
    timeouts, queue, retry = config.defaults.timeouts, config.defaults.queue, config.defaults.retry
    tenants = ", ".join(summary["tenants"])
    access = f"{_count(len(config.auth.keys), 'key')} for {tenants}" if tenants else "open: no auth.keys"
    lines = [
        f"listen   {summary['listen']}{' with TLS' if config.certificates else ''}, admin {summary['admin']}",
        f"access   {access}",
        f"defaults {config.defaults.policy}, memory {config.defaults.memory}",
        f"         at most {queue.size} wait, {format_duration(queue.wait)} each; "
        f"{_count(retry.retries, 'retry')} within {format_share(retry.budget)}; "
        f"{format_duration(timeouts.total)} in all",
    ]
    limits = config.limits
    lines.append(
        f"limits   body {format_size(limits.body)}, all bodies {format_size(limits.body_memory)}, "
        f"headers {format_size(limits.headers)}, {limits.connections} connections"
    )
    engines = Counter(node.engine for node in config.nodes)
    lines.append(f"nodes    {len(config.nodes)}: " + ", ".join(f"{count} {name}" for name, count in engines.items()))
    for node in config.nodes:
        memory = f", {format_size(node.gpu_memory)}" if node.gpu_memory else ""
        models = f", models {', '.join(node.models)}" if node.models else ""
        most = f", at most {node.max_in_flight} in flight" if node.max_in_flight else ""
        weight = f", weight {node.weight}" if node.weight != 1 else ""
        version = f", version {node.version}" if node.version else ""
        lines.append(f"         {node.name}  {node.url}, {node.engine}{memory}{most}{weight}{version}{models}")
    if not config.routes:
        lines.append("routes   none: every request gets the defaults")
    for route in summary["routes"]:
        match = ", ".join(f"{key} {_one_line(value)}" for key, value in route["match"].items()) or "every request"
        lines.append(f"route    {route['name']}: {match} -> {route['policy']}, memory {route['memory']}")
    lines += [f"alias    {name} -> {target}" for name, target in config.aliases.items()]
    return lines


def _count(number: int, noun: str) -> str:
    plural = noun.removesuffix("y") + "ies" if noun.endswith("ry") else noun + "s"
    return f"{number} {noun if number == 1 else plural}"


def _one_line(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return value if isinstance(value, str) else " ".join(value)
