"""The program `steelyard`: its commands, and what becomes of errors.

A command's module is imported only when that command runs, so that `steelyard version` does not wait for the proxy.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from steelyard import __version__
from steelyard.config.errors import ConfigError

# In the order of `steelyard --help`. The command NAME is the function NAME of steelyard.cli.NAME.
COMMANDS = ("demo", "serve", "check", "emulate", "traps", "version")


class LazyGroup(TyperGroup):
    """The commands of COMMANDS, imported when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if importlib.util.find_spec(f"steelyard.cli.{name}") is not None]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        function = getattr(importlib.import_module(f"steelyard.cli.{cmd_name}"), cmd_name)
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        single.command(cmd_name)(function)
        return typer.main.get_command(single)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    name="steelyard",
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich cuts the names of options off, and takes "[default: 5s]" for markup
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"steelyard {__version__}")
        raise typer.Exit


@app.callback()
def steelyard(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """A load balancer for AI inference that weighs every request before it places it."""


def main() -> None:
    """Run the command line. Exits with 2 when what was asked for is wrong, with one clear line for each reason."""
    app(prog_name="steelyard")


if __name__ == "__main__":
    main()
