"""`steelyard traps`."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from steelyard.emulator import EmulatorError
from steelyard.sim import report
from steelyard.sim.gateway_process import GatewayError
from steelyard.sim.live import ScenarioResult, play
from steelyard.sim.load import Record
from steelyard.sim.loop import run_until_told
from steelyard.sim.scenario import Scenario
from steelyard.sim.scenarios import UnknownTrap, find, scenarios

INTERRUPTED = 130
SLOWEST = 10.0
"""The largest time scale. Slower than a tenth of real time nobody would wait for."""


def traps(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Which traps; a part of a name will do. Default: all."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Through the real gateway, over sockets, in front of emulated nodes.")
    ] = False,
    short: Annotated[bool, typer.Option("--short", help="Fewer requests: under a minute a trap.")] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="Fixes the trace.  [default: the trap's]")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the results as JSON; - is stdout.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Say which traps there are, and end.")] = False,
    time_scale: Annotated[
        float | None,
        typer.Option(
            "--time-scale", metavar="SCALE", help="Real seconds per emulated second.  [default: the trap's, about 0.1]"
        ),
    ] = None,
) -> None:
    """Play the traps: what a general balancer does to AI inference.

    Every trap sends the same seeded trace through the gateway, configured as a naive balancer (before) and as it should
    be (after), to emulated GPU nodes. Exit code 0: everything expected came out and nothing was lost; 1: it did not.
    """
    known = scenarios()
    try:
        chosen = [find(name, known) for name in names] if names else list(known.values())
    except UnknownTrap as error:
        raise _wrong(str(error)) from None
    if listed:
        for scenario in chosen:
            typer.echo(
                f"{scenario.name}  {scenario.title} ({', '.join(scenario.legs)}; {scenario.requests:,} requests)"
            )
        return
    if not live:
        raise _wrong(
            "the simulator comes in a later release; `steelyard traps --live` plays the traps through the real gateway"
        )
    if time_scale is not None and not 0 < time_scale <= SLOWEST:
        raise _wrong(f"--time-scale must be above 0 and at most {SLOWEST:g}, not {time_scale:g}; e.g. 0.1")
    _check_writable(json_file)
    # With --json - stdout is JSON and nothing else.
    console = Console(stderr=json_file == "-", highlight=False)
    unique = {scenario.name: scenario for scenario in chosen}
    try:
        results = [_play(scenario, seed, short, time_scale, console) for scenario in unique.values()]
    except KeyboardInterrupt:
        typer.echo("interrupted: gateway and nodes were stopped", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if json_file is not None:
        text = json.dumps({"traps": [report.as_json(result) for result in results]}, indent=2) + "\n"
        if json_file == "-":
            sys.stdout.write(text)
        else:
            Path(json_file).write_text(text)
    raise typer.Exit(0 if all(result.holds for result in results) else 1)


def _play(
    scenario: Scenario, seed: int | None, short: bool, time_scale: float | None, console: Console
) -> ScenarioResult:
    """Play one trap with a progress bar, and print what it gave."""
    directory = Path(tempfile.mkdtemp(prefix="steelyard-trap-"))
    errors = Console(stderr=True)
    kept = False
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[oom]} out of memory"),
        TimeRemainingColumn(),
        console=errors,
        disable=not errors.is_terminal,
        transient=True,
    ) as progress:
        total = scenario.requests_short if short else scenario.requests
        tasks = {
            leg: progress.add_task(f"{scenario.name}: {leg}", total=total, oom=0, start=False) for leg in scenario.legs
        }
        oom = dict.fromkeys(scenario.legs, 0)

        def ended(leg: str, record: Record) -> None:
            oom[leg] += record.out_of_memory
            progress.start_task(tasks[leg])
            progress.update(tasks[leg], advance=1, oom=oom[leg])

        try:
            result = run_until_told(
                play(scenario, directory, seed=seed, short=short, time_scale=time_scale, progress=ended)
            )
            kept = not result.holds
        except (GatewayError, EmulatorError) as error:
            kept = True
            typer.echo(f"error: {error}\nlogs are in {directory}", err=True)
            raise typer.Exit(1) from None
        finally:
            if not kept:
                shutil.rmtree(directory, ignore_errors=True)
    report.show(result, console)
    if kept:
        console.print(f"the gateway's logs are in {directory}", soft_wrap=True)
    return result


def _check_writable(file: str | None) -> None:
    """What cannot be written is said before minutes have passed."""
    if file is None or file == "-":
        return
    folder = Path(file).parent
    if not folder.is_dir():
        raise _wrong(f"--json {file}: there is no directory {folder}")
    if Path(file).is_dir() or not os.access(file if Path(file).exists() else folder, os.W_OK):
        raise _wrong(f"--json {file}: cannot be written")


def _wrong(message: str) -> typer.Exit:
    """Bad input: one line, exit code 2."""
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(2)
