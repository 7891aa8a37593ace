"""`steelyard serve`: run the gateway."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Annotated, Any, get_args

import structlog
import typer

from steelyard.config.advice import advice
from steelyard.config.errors import ConfigError
from steelyard.config.load import CONFIG_VARIABLE, load
from steelyard.config.release import POLICIES_NOT_AVAILABLE
from steelyard.config.route_schema import PolicyName
from steelyard.config.schema import Config
from steelyard.service import CannotStart, Service

POLICIES = ", ".join(name for name in get_args(PolicyName) if name not in POLICIES_NOT_AVAILABLE)


def serve(
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", metavar="FILE", help="The configuration (YAML). Reloaded on SIGHUP."),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", "-n", metavar="URL", help="An inference server, e.g. http://10.0.0.1:8000. Repeatable."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where clients connect.  [default: 0.0.0.0:8080]")
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Health, metrics and the admin API.  [default: 127.0.0.1:9901]"),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="POLICY", help=f"How a node is chosen: {POLICIES}.  [default: least-work]")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="enforce|ignore", help="Whether memory can veto a node.  [default: enforce]")
    ] = None,
    telemetry_interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="How often nodes are checked.  [default: 1s]")
    ] = None,
    response_headers: Annotated[
        bool | None,
        typer.Option("--response-headers/--no-response-headers", help="Tell clients which node served them, and why."),
    ] = None,
    access_log: Annotated[
        str | None,
        typer.Option(metavar="stderr|stdout|off|FILE", help="One JSON line a request.  [default: stderr]"),
    ] = None,
    shutdown_delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="On SIGTERM, how long to go on accepting.  [default: 5s]")
    ] = None,
    shutdown_grace: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long answers under way may take then.  [default: 10m]")
    ] = None,
) -> None:
    """Run the gateway in front of inference servers.

    Every option can also be set by a variable, STEELYARD_ with the option's name (STEELYARD_NODE,
    STEELYARD_ACCESS_LOG, ...), or in the file that --config or STEELYARD_CONFIG names, where there is more to set:
    docs/configuration.md. The flag wins over the variable, and the variable over the file.

    SIGTERM ends gracefully: /ready says 503, connections are accepted for --shutdown-delay, answers under way are
    finished within --shutdown-grace. Exit code 0; 1 when the grace was over before, or a second signal ended it at
    once; 2 when it could not start, because of its configuration, an address or a file.
    """
    overrides: dict[str, Any] = {
        "nodes": node,
        "listen": listen,
        "admin": admin,
        "defaults.policy": policy,
        "defaults.memory": memory,
        "telemetry.interval": telemetry_interval,
        "response_headers": response_headers,
        "access_log": access_log,
        "shutdown.delay": shutdown_delay,
        "shutdown.grace": shutdown_grace,
    }

    def configuration() -> Config:
        return load(config, overrides)

    loaded = configuration()
    log_to_stderr()
    for doubt in advice(loaded, os.environ):
        structlog.get_logger("steelyard").warning(doubt)
    try:
        code = run_loop(_serve(loaded, configuration, bool(config or os.environ.get(CONFIG_VARIABLE))))
    except CannotStart as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(code)


def run_loop(main: Any) -> Any:
    """Run a coroutine on uvloop, or on asyncio's loop where uvloop does not exist."""
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


def log_to_stderr() -> None:
    """The gateway's own log: one JSON line an event on stderr, beside the access log."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


async def _serve(config: Config, configuration: Any, from_file: bool) -> int:
    log = structlog.get_logger("steelyard")
    service = Service(config)
    await service.start()
    log.info(
        "listening",
        listen=str(config.listen),
        admin=str(config.admin),
        nodes=len(config.nodes),
        pid=os.getpid(),
    )
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: _log_error(log, context))
    wanted: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, wanted.put_nowait, number)
    ending: asyncio.Task[bool] | None = None
    next_signal = loop.create_task(wanted.get())
    while True:
        waiting = {next_signal} if ending is None else {next_signal, ending}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if ending is not None and ending.done():
            next_signal.cancel()
            return 0 if ending.result() else 1
        number = next_signal.result()
        next_signal = loop.create_task(wanted.get())
        if number is signal.SIGHUP and not from_file:
            log.warning("there is no configuration file to reload; flags and variables stay as they are")
        elif number is signal.SIGHUP:
            _reload(service, configuration, log)
        elif ending is None:
            # Ctrl-C comes from a person at a terminal: no balancer in front needs time to notice.
            ending = loop.create_task(service.drain(0.0 if number is signal.SIGINT else None))
        else:
            log.warning("ending at once", cut=len(service.gateway.exchanges))
            ending.cancel()
            next_signal.cancel()
            await service.stop()
            return 1


def _log_error(log: Any, context: dict[str, Any]) -> None:
    """What nobody caught, as one line like all others."""
    log.error(str(context.get("message", "an error that nobody caught")), exc_info=context.get("exception"))


def _reload(service: Service, configuration: Any, log: Any) -> None:
    try:
        config = configuration()
    except ConfigError as error:
        log.error("the new configuration is wrong; the old one stays", problems=[str(p) for p in error.problems])
        return
    except Exception:
        # Whatever is the matter with a file: a gateway that runs goes on.
        log.exception("the new configuration cannot be read; the old one stays")
        return
    try:
        service.reload(config)
    except ConfigError as error:
        log.error("the new configuration is wrong; the old one stays", problems=[str(p) for p in error.problems])
    except Exception:
        log.exception("the new configuration was not taken over in full")
