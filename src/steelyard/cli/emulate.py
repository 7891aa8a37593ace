"""`steelyard emulate`."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Annotated, Any

import typer

from steelyard.config.errors import ConfigError
from steelyard.config.units import format_size, parse_size
from steelyard.emulator import KINDS, EmulatedFleet, EmulatorError, NodeProfile, uniform


def emulate(
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="How many nodes.")] = 8,
    gpu_memory: Annotated[
        str, typer.Option("--gpu-memory", metavar="SIZE", help="Usable memory of each card: 24GB, 24GiB.")
    ] = "24GB",
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help=f"What the nodes are: {', '.join(KINDS)}.")
    ] = "llm",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="Node i listens on port + i; 0 takes free ports.")
    ] = 9000,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    time_scale: Annotated[
        float,
        typer.Option(
            "--time-scale", metavar="SCALE", help="Real seconds per emulated second: 0.1 is ten times quicker."
        ),
    ] = 1.0,
    speed: Annotated[
        list[float] | None,
        typer.Option("--speed", metavar="FACTOR", help="Speed of the cards: once for all, or once a node."),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Fixes texts, token counts and the luck of faults.")
    ] = 0,
    model: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="A model that the nodes serve; repeatable.")
    ] = None,
    version: Annotated[str, typer.Option("--version", metavar="NAME", help="The version of the nodes' models.")] = "v1",
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", metavar="N", help="Jobs on a card at once (sd, whisper: no limit; classify: 1)."),
    ] = None,
    queue_limit: Annotated[
        int | None,
        typer.Option("--queue-limit", metavar="N", help="Requests that a node queues before it answers 503."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the nodes as one line of JSON.")] = False,
) -> None:
    """Run emulated GPU nodes that speak as real engines do.

    Faults are injected with POST /_emulator/faults on a node, and counters read with GET /_emulator/stats.
    """
    try:
        if not 0 <= port <= 65535:
            raise EmulatorError(f"port must be from 0 to 65535, not {port}")
        profile = NodeProfile(
            kind=kind,  # type: ignore[arg-type]  # NodeProfile refuses what is not a kind
            gpu_memory=parse_size(gpu_memory),
            models=tuple(model or ()),
            version=version,
            concurrency=concurrency,
            queue_limit=queue_limit,
        )
        fleet = EmulatedFleet(
            uniform(nodes, profile, speed or ()), host=host, port=port, time_scale=time_scale, seed=seed
        )
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(fleet, as_json))
    except (EmulatorError, ConfigError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


async def _run(fleet: EmulatedFleet, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with fleet:
        rows: list[dict[str, Any]] = [
            {
                "name": node.name,
                "url": node.url,
                "engine": node.profile.engine,
                "models": list(node.engine.models),
                "version": node.profile.version,
                "gpu_memory": node.profile.gpu_memory,
                "speed": node.profile.speed,
            }
            for node in fleet.nodes
        ]
        if as_json:
            typer.echo(json.dumps({"nodes": rows}))
        else:
            for row in rows:
                models = ", ".join(row["models"])
                typer.echo(f"{row['name']}  {row['url']}  {row['engine']}  {models}  {format_size(row['gpu_memory'])}")
            typer.echo(f"faults: curl -d '{{\"slow\": 3}}' {fleet.nodes[0].url}/_emulator/faults   (Ctrl-C ends)")
        await stop.wait()


def _loop_factory():
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
