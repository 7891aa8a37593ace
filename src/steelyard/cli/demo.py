"""`steelyard demo`."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from steelyard.demo import curls, table
from steelyard.demo.board import Board
from steelyard.demo.fleet import FLEET, TIME_SCALE
from steelyard.demo.run import Summary, Up, run
from steelyard.emulator import EmulatorError
from steelyard.sim.gateway_process import GatewayError
from steelyard.sim.loop import run_until_told

SECONDS = 20.0
"""Of load, for somebody who looks on."""
SECONDS_ONCE = 5.0
LINE_EVERY = 2.0
"""Seconds between two lines where there is no table."""
INTERRUPTED = 130


def demo(
    once: Annotated[bool, typer.Option("--once", help="End after the load; exit code 0 if all was answered.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", metavar="SECONDS", help=f"Of load.  [default: {SECONDS:g}, with --once {SECONDS_ONCE:g}]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one line of JSON.")] = False,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Of the gateway; a free one if taken.")
    ] = 8080,
    admin_port: Annotated[
        int,
        typer.Option("--admin-port", metavar="PORT", min=0, max=65535, help="Of the admin API; a free one if taken."),
    ] = 9901,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Fixes the load.")] = 1,
) -> None:
    """Show the gateway at work: an emulated GPU fleet under load.

    All on this machine, nothing to configure. When the load has ended, it stays up for the curl lines that it prints,
    until Ctrl-C.
    """
    wanted = seconds if seconds is not None else SECONDS_ONCE if once else SECONDS
    if not 0 < wanted < math.inf:
        typer.echo(f"error: --seconds must be above 0, not {wanted:g}; e.g. 5", err=True)
        raise typer.Exit(2)
    screen = Screen(as_json, port, admin_port, once)
    directory = Path(tempfile.mkdtemp(prefix="steelyard-demo-"))
    try:
        with screen:
            holds = run_until_told(
                run(
                    directory,
                    seconds=wanted,
                    port=port,
                    admin_port=admin_port,
                    seed=seed,
                    once=once,
                    up=screen.up,
                    look=screen.look,
                    summary=screen.summary,
                )
            )
    except KeyboardInterrupt:
        screen.say("ended: gateway and nodes were stopped")
        if screen.good or not screen.summed_up:
            shutil.rmtree(directory, ignore_errors=True)
        # Ctrl-C is how somebody ends a demo that stays up; before its summary it is an interruption.
        raise typer.Exit((0 if screen.good else 1) if screen.summed_up else INTERRUPTED) from None
    except (GatewayError, EmulatorError) as error:
        typer.echo(f"error: {error}\nlogs are in {directory}", err=True)
        raise typer.Exit(1) from None
    if holds:
        shutil.rmtree(directory, ignore_errors=True)
    raise typer.Exit(0 if holds else 1)


class Screen:
    """What is shown. With `as_json` stdout is JSON and everything else goes to stderr."""

    def __init__(self, as_json: bool, port: int, admin_port: int, once: bool) -> None:
        self.summed_up = False
        self.good = False
        self._as_json = as_json
        self._wanted = (port, admin_port)
        self._once = once
        self._console = Console(stderr=as_json, highlight=False)
        moving = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if moving else None
        self._next_line = LINE_EVERY

    def __enter__(self) -> Screen:
        self.say(f"starting {len(FLEET)} emulated GPU nodes ({1 / TIME_SCALE:g}x real speed) and the gateway ...")
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """One line, as long as it is."""
        self._console.print(Text(text), soft_wrap=True)

    def up(self, started: Up) -> None:
        """Everything runs."""
        for name, wanted, got in zip(
            ("port", "admin port"), self._wanted, (started.port, started.admin_port), strict=True
        ):
            if wanted not in (0, got):
                self.say(f"{name} {wanted} is in use, taking {got}")
        self.say(
            f"up in {started.seconds:.1f} s: gateway http://127.0.0.1:{started.port}, "
            f"admin http://127.0.0.1:{started.admin_port}"
        )
        if not self._once:
            self.say(f"access log: {started.access_log}")
        if self._live is not None:
            self._live.start()

    def look(self, board: Board, now: float, left: float) -> None:
        """A moment of the load."""
        if self._live is not None:
            self._live.update(table.view(board, now, left, self._console.width, self._console.height), refresh=True)
        elif now >= self._next_line:
            self._next_line += LINE_EVERY
            self.say(table.line(board, now))

    async def summary(self, made: Summary) -> None:
        """The load has ended. Returns when the demo is to end."""
        if self._live is not None:
            self._live.stop()
        self.summed_up = True
        self.good = made.holds
        if self._as_json:
            sys.stdout.write(json.dumps(made.as_json()) + "\n")
            sys.stdout.flush()
        else:
            self._print_summary(made)
        if self._once:
            return
        self.say("")
        for what, command in curls.lines(made.up.port, made.up.admin_port):
            self._console.print(Text(f"# {what}", style="dim"), soft_wrap=True)
            self.say(command)
        self.say("")
        self.say("It stays up for these; Ctrl-C ends it.")
        await asyncio.Event().wait()

    def _print_summary(self, made: Summary) -> None:
        figures = table.plain()
        figures.add_column("kind", no_wrap=True)
        for heading in ("requests", "answered", "p50 s", "p99 s", "first token s"):
            figures.add_column(heading, justify="right")
        for kind, those in made.kinds().items():
            figures.add_row(
                kind,
                f"{those['requests']:,}",
                f"{those['answered']:,}",
                *(table.seconds(those[name]) for name in ("latency_p50", "latency_p99", "first_token_p50")),
                style="bold" if kind == "all" else "",
            )
        self._console.print(figures)
        self.say(f"{made.tokens:,} tokens in {made.seconds:g} s: {made.tokens / made.seconds:,.0f} a second")
        for check in made.checks:
            mark = ("✓ ", "green") if check.holds else ("✗ ", "bold red")
            self._console.print(Text.assemble(mark, check.name, (f": {check.detail}", "dim")), soft_wrap=True)
        for record in [record for record in made.records if record.outcome != "answered"][:5]:
            self.say(f"✗ {record.id} {record.kind}: {record.status} {record.error}")
        if made.holds:
            self._console.print(Text("all requests were answered, nothing is left over", style="bold green"))
        else:
            self._console.print(Text("not everything was right: see the lines with a cross", style="bold red"))
            self.say(f"logs are in {made.up.access_log.parent}")
