"""Compiles the data path when a wheel is built: mypyc makes C extensions of the same sources that Python runs.

STEELYARD_COMPILE says what is wanted: unset, compile where there is a C compiler and else make a wheel of pure Python;
0, do not compile; 1, fail when it cannot be compiled. An editable install is never compiled: its sources change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RINGS = ("core", "dialects", "proxy")
PURE = frozenset(
    {
        "steelyard/dialects/anthropic_fields.py",
        "steelyard/dialects/events.py",
        "steelyard/dialects/fields.py",
        "steelyard/dialects/multipart.py",
        "steelyard/dialects/openai_fields.py",
        "steelyard/dialects/sdwebui_fields.py",
        "steelyard/proxy/access_log.py",
        "steelyard/proxy/listener.py",
        "steelyard/proxy/tls.py",
    }
)
"""mypyc does not know msgspec's Struct, nor dataclasses with `slots=True`. The last two run once a connection, and with
types that are not what typeshed says."""
MORE = ("steelyard/telemetry/fetch.py",)
"""Has a subclass of a compiled class, so it must be compiled itself."""
COMPILERS = ("mypy", "setuptools", "httptools", "msgspec")
"""The compiler, and what it must know the types of."""
GROUP = "steelyard_compiled"
"""Name of the shared library that holds the code; each module has a small one that points to it."""
SCRIPT = """
import sys
from mypyc.build import mypycify
from setuptools import setup
setup(
    name="steelyard",
    packages=[],
    ext_modules=mypycify(["--ignore-missing-imports", *sys.argv.pop().split(",")], group_name="{group}"),
)
"""


def wish() -> str:
    """`0`, `1`, or nothing."""
    return os.environ.get("STEELYARD_COMPILE", "")


class CompiledRings(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the extensions into the wheel, beside the sources."""

    PLUGIN_NAME = "custom"
    _folder: Path | None = None

    def dependencies(self) -> list[str]:
        if wish() == "0":
            return []
        pinned = (Path(self.root) / "constraints.txt").read_text().splitlines()
        return [line for line in pinned if line.partition("==")[0] in COMPILERS]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or wish() == "0":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="steelyard-build-"))
        sources = self._folder / "src"
        shutil.copytree(Path(self.root) / "src", sources, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        modules = [
            *MORE,
            *(
                name
                for ring in RINGS
                for path in sorted((sources / "steelyard" / ring).rglob("*.py"))
                if (name := path.relative_to(sources).as_posix()) not in PURE
            ),
        ]
        self.app.display_info(f"compiling {len(modules)} modules; this takes about a minute")
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(group=GROUP), "build_ext", "--inplace", ",".join(modules)],
            cwd=sources,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            if wish() == "1":
                raise RuntimeError(f"cannot compile the data path:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
            last = (done.stderr.strip() or "no reason given").splitlines()[-1]
            self.app.display_warning(f"the wheel is pure Python, which costs more CPU a request: {last}")
            return
        shutil.rmtree(sources / "build")
        for library in sources.rglob("*.so"):
            build_data["force_include"][str(library)] = library.relative_to(sources).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
