"""`steelyard version`."""

from __future__ import annotations

import json
import platform
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

import steelyard

# The libraries whose version matters when the data path behaves oddly.
_LIBRARIES = ("httptools", "msgspec", "pydantic", "uvloop")


def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the versions of Steelyard, Python and the data path."""
    versions = {"steelyard": steelyard.__version__, "python": platform.python_version(), "data path": data_path()}
    for library in _LIBRARIES:
        try:
            versions[library] = installed_version(library)
        except PackageNotFoundError:  # uvloop, on Windows
            continue
    if as_json:
        typer.echo(json.dumps(versions))
        return
    typer.echo(f"steelyard {versions.pop('steelyard')}, data path {versions.pop('data path')}")
    typer.echo(", ".join(f"{name} {number}" for name, number in versions.items()))


def data_path() -> str:
    """`compiled` (a wheel that was built with a C compiler), or `pure Python`."""
    # Looked up, not imported: to print a version must not start the proxy.
    found = PathFinder.find_spec("exchange", [f"{folder}/proxy" for folder in steelyard.__path__])
    return "pure Python" if found is None or (found.origin or "").endswith(".py") else "compiled"
