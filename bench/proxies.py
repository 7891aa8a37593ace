"""The proxies that are measured and the exact configuration of each.

All get one worker or thread, both nodes, keep-alive on both sides and an access log, since an access log is
on by default in Steelyard. What differs from a proxy's own defaults is only what the load needs (number of
connections, time-outs of idle streams) and is written in `Proxy.settings`, which goes into the report.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.processes import LOOPBACK, Process, free_port

REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "steelyard-bench"
# An idle stream must outlive its measurement in every proxy.
IDLE_SECONDS = 600


@dataclass(frozen=True)
class Setting:
    """Where one proxy listens and what stands behind it, for one measurement."""

    nodes: tuple[int, int]
    port: int
    admin: int
    folder: Path
    streaming: bool
    connections: int


@dataclass(frozen=True)
class Launch:
    """Command, environment and the text of the configuration of one proxy."""

    command: Sequence[str]
    config: str
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Proxy:
    """One proxy: how it is found, asked for its version, and launched."""

    name: str
    settings: str
    find: Callable[[Path], str | None]
    version: Callable[[str], str]
    launch: Callable[[str, Setting], Launch]
    ready_path: str | None = None
    """Asked on the admin port before the first sample, where answering requests is not yet all of being up."""


def start(proxy: Proxy, program: str, setting: Setting, wrapper: Sequence[str] = ()) -> Process:
    """Start `proxy` as `setting` says; `wrapper`, if any, takes the place of ``python -m`` before its module."""
    launch = proxy.launch(program, setting)
    command = [*wrapper, *launch.command[2:]] if wrapper else launch.command
    return Process(proxy.name, command, setting.folder, launch.env)


def _on_path(name: str) -> Callable[[Path], str | None]:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    return lambda _cache: shutil.which(name, path=path)


def _in_cache(name: str, package: str) -> Callable[[Path], str | None]:
    return lambda cache: shutil.which(name, path=str(cache / package / "bin")) or shutil.which(name)


def _said(command: Sequence[str], pattern: str = r"\d+\.\d+[^\s/]*") -> str:
    """The first thing like a version number in what a command prints, or ``unknown``."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    found = re.search(pattern, done.stdout + done.stderr)
    return found[0] if found else "unknown"


# --- Steelyard -------------------------------------------------------------------------------------------------


def steelyard_path() -> dict[str, str]:
    """The environment in which a child of this interpreter imports the Steelyard that is measured.

    It is the installed one (a compiled wheel, in `make bench`), or the checkout's sources where none is installed or
    the install is an editable one.
    """
    found = importlib.util.find_spec("steelyard")
    if found is not None and found.origin and not Path(found.origin).resolve().is_relative_to(REPOSITORY / "src"):
        return {}
    earlier = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), *([earlier] if earlier else [])])}


def why_not_steelyard() -> str | None:
    """Why ``steelyard serve`` cannot be run with this interpreter (the last line of what it says), or None."""
    asked = subprocess.run(
        [sys.executable, "-m", "steelyard", "serve", "--help"],
        env={**os.environ, **steelyard_path()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if asked.returncode == 0:
        return None
    return (asked.stderr.strip() or f"exit code {asked.returncode}").splitlines()[-1]


def _find_steelyard(_cache: Path) -> str | None:
    return None if why_not_steelyard() else sys.executable


def _steelyard_version(program: str) -> str:
    done = subprocess.run(
        [program, "-m", "steelyard", "version"],
        env={**os.environ, **steelyard_path()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ", ".join(done.stdout.split("\n")[:2]).removeprefix("steelyard ").strip(", ") or "unknown"


def _launch_steelyard(program: str, setting: Setting) -> Launch:
    flags = [f"--node=http://{LOOPBACK}:{port}" for port in setting.nodes]
    flags += [f"--listen={LOOPBACK}:{setting.port}", f"--admin={LOOPBACK}:{setting.admin}"]
    command = [program, "-m", "steelyard", "serve", *flags]
    return Launch(command, "defaults of `steelyard serve`; flags: " + " ".join(flags), steelyard_path())


# --- nginx -----------------------------------------------------------------------------------------------------

_NGINX_PATHS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def nginx_command(program: str, folder: Path, name: str, config: str) -> list[str]:
    """Write an nginx configuration of its own folders (it runs as any user) and return its command."""
    home = folder / name
    home.mkdir(exist_ok=True)
    path = home / "nginx.conf"
    path.write_text(config)
    return [program, "-e", "stderr", "-p", str(home), "-c", str(path)]


def nginx_config(http: str, connections: int, access_log: str) -> str:
    """One worker in the foreground; `http` goes into the http block."""
    user = "user root;\n" if os.geteuid() == 0 else ""
    temp = "\n".join(f"  {path}_temp_path {path};" for path in _NGINX_PATHS)
    return (
        f"{user}daemon off;\nworker_processes 1;\npid nginx.pid;\nerror_log stderr warn;\n"
        f"events {{ worker_connections {connections}; }}\n"
        f"http {{\n  access_log {access_log};\n{temp}\n{http}\n}}\n"
    )


def _launch_nginx(access_log: str, name: str) -> Callable[[str, Setting], Launch]:
    def launch(program: str, setting: Setting) -> Launch:
        servers = " ".join(f"server {LOOPBACK}:{port};" for port in setting.nodes)
        unbuffered = "      proxy_buffering off; proxy_request_buffering off;\n" if setting.streaming else ""
        http = (
            f"  upstream nodes {{ {servers} keepalive 256; keepalive_requests 1000000000; }}\n"
            f"  server {{\n    listen {LOOPBACK}:{setting.port} backlog=4096;\n"
            "    keepalive_requests 1000000000; client_max_body_size 64m;\n"
            "    location / {\n      proxy_pass http://nodes; proxy_http_version 1.1;\n"
            '      proxy_set_header Connection "";\n'
            "      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n"
            f"      proxy_read_timeout {IDLE_SECONDS}s; proxy_send_timeout {IDLE_SECONDS}s;\n"
            f"{unbuffered}    }}\n  }}"
        )
        # Two a request, and nginx never uses the last sixteenth.
        config = nginx_config(http, 2 * setting.connections * 9 // 8 + 256, access_log)
        return Launch(nginx_command(program, setting.folder, name, config), config)

    return launch


# --- HAProxy ---------------------------------------------------------------------------------------------------


def _launch_haproxy(program: str, setting: Setting) -> Launch:
    # Without it HAProxy holds events back to send several at once, as proxy_buffering would in nginx.
    no_delay = "  option http-no-delay\n" if setting.streaming else ""
    servers = "\n".join(f"  server n{i} {LOOPBACK}:{port}" for i, port in enumerate(setting.nodes))
    config = (
        f"global\n  nbthread 1\n  maxconn {setting.connections + 64}\n  log stdout format raw local0 info\n"
        "defaults\n  mode http\n  log global\n  option httplog\n  option forwardfor\n"
        f"{no_delay}  http-reuse always\n  timeout connect 2s\n  timeout client {IDLE_SECONDS}s\n"
        f"  timeout server {IDLE_SECONDS}s\n"
        f"listen gateway\n  bind {LOOPBACK}:{setting.port} backlog 4096\n  balance leastconn\n{servers}\n"
    )
    path = setting.folder / "haproxy.cfg"
    path.write_text(config)
    return Launch([program, "-db", "-f", str(path)], config)


# --- Envoy -----------------------------------------------------------------------------------------------------


def _launch_envoy(program: str, setting: Setting) -> Launch:
    def address(port: int) -> dict[str, object]:
        return {"socket_address": {"address": LOOPBACK, "port_value": port}}

    def typed(name: str, **rest: object) -> dict[str, object]:
        return {"@type": f"type.googleapis.com/envoy.extensions.{name}", **rest}

    # Envoy's own limits are 1,024 connections and requests a cluster: too few for the idle streams.
    thresholds = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 2 * setting.connections)
    route = {"match": {"prefix": "/"}, "route": {"cluster": "nodes", "timeout": "0s"}}
    manager = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="gateway",
        stream_idle_timeout=f"{IDLE_SECONDS}s",
        access_log=[
            {
                "name": "envoy.access_loggers.file",
                "typed_config": typed("access_loggers.file.v3.FileAccessLog", path="envoy-access.log"),
            }
        ],
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        http_filters=[{"name": "envoy.filters.http.router", "typed_config": typed("filters.http.router.v3.Router")}],
    )
    listener = {
        "name": "gateway",
        "address": address(setting.port),
        "tcp_backlog_size": 4096,
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    cluster = {
        "name": "nodes",
        "type": "STATIC",
        "connect_timeout": "2s",
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": {"thresholds": [thresholds]},
        "load_assignment": {
            "cluster_name": "nodes",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(port)}} for port in setting.nodes]}],
        },
    }
    # JSON is YAML, and the name's ending tells Envoy which parser to use.
    config = json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}, indent=1)
    path = setting.folder / "envoy.json"
    path.write_text(config)
    command = [program, "-c", str(path), "--concurrency", "1", "--disable-hot-restart", "-l", "warning"]
    return Launch(command, config)


# --- vllm-router -----------------------------------------------------------------------------------------------


def _launch_vllm_router(program: str, setting: Setting) -> Launch:
    urls = [f"http://{LOOPBACK}:{port}" for port in setting.nodes]
    flags = ["--host", LOOPBACK, "--port", str(setting.port), "--policy", "power_of_two"]
    flags += ["--prometheus-port", str(setting.admin), "--worker-urls", *urls]
    env = {"TOKIO_WORKER_THREADS": "1"}
    return Launch([program, *flags], f"TOKIO_WORKER_THREADS=1 vllm-router {' '.join(flags)}", env)


PROXIES = {
    proxy.name: proxy
    for proxy in (
        Proxy(
            "steelyard",
            "defaults of `serve`",
            _find_steelyard,
            _steelyard_version,
            _launch_steelyard,
            "/ready",
        ),
        Proxy(
            "nginx",
            "1 worker, keep-alive to the nodes, access log on (unbuffered file); proxy_buffering and "
            "proxy_request_buffering off wherever there are streams or big bodies",
            _on_path("nginx"),
            lambda program: _said([program, "-v"]),
            _launch_nginx("access.log", "nginx"),
        ),
        Proxy(
            "nginx-quiet",
            "as nginx, with access_log off",
            _on_path("nginx"),
            lambda program: _said([program, "-v"]),
            _launch_nginx("off", "nginx-quiet"),
        ),
        Proxy(
            "haproxy",
            "1 thread, leastconn, http-reuse always, httplog to a file; http-no-delay wherever there are streams",
            _on_path("haproxy"),
            lambda program: _said([program, "-v"]),
            _launch_haproxy,
        ),
        Proxy(
            "envoy",
            "concurrency 1, least request, access log on (file), no admin listener",
            _in_cache("envoy", "envoy"),
            lambda program: _said([program, "--version"], r"\d+\.\d+\.\d+"),
            _launch_envoy,
        ),
        Proxy(
            "vllm-router",
            "1 tokio worker, power_of_two, its own log and metrics defaults",
            _in_cache("vllm-router", "vllm-router"),
            lambda program: _package_version(Path(program).with_name("python"), "vllm-router"),
            _launch_vllm_router,
        ),
    )
}
SUBJECT = "steelyard"
BASELINE = "nginx"
# nginx-quiet is there for those who ask for it; one nginx is enough for the ratios.
DEFAULT_PEERS = ("nginx", "haproxy", "envoy", "vllm-router")


def _package_version(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return _said([str(python), "-c", code])


def new_setting(nodes: tuple[int, int], folder: Path, *, streaming: bool = False, connections: int = 1024) -> Setting:
    """A setting on two ports that are free now."""
    return Setting(nodes, free_port(), free_port(), folder, streaming, connections)
