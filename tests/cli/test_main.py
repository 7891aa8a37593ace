"""The program `steelyard` from outside: exit codes, and where what is said goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from steelyard import __version__
from steelyard.cli.main import COMMANDS, LazyGroup, app
from steelyard.cli.version import data_path
from steelyard.config.load import SETTINGS


def steelyard(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "steelyard", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        env={**{name: value for name, value in os.environ.items() if not name.startswith("STEELYARD_")}, **environ},
        check=False,
    )


@pytest.fixture(autouse=True)
def source_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The subprocess imports this checkout, installed or not."""
    source = str(Path(__file__).parents[2] / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")])))


def test_version() -> None:
    done = steelyard("version")
    assert (done.returncode, done.stderr) == (0, "")
    versions = json.loads(steelyard("version", "--json").stdout)
    assert done.stdout.startswith(f"steelyard {__version__}, data path {versions['data path']}\n")
    assert versions["steelyard"] == __version__
    assert set(versions) >= {"python", "httptools", "msgspec", "pydantic"}


@pytest.mark.parametrize(
    ("files", "says"),
    [(["exchange.py"], "pure Python"), (["exchange.py", "exchange" + EXTENSION_SUFFIXES[0]], "compiled")],
)
def test_version_tells_how_the_data_path_is_built(
    files: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proxy").mkdir()
    for name in files:
        (tmp_path / "proxy" / name).touch()
    monkeypatch.setattr("steelyard.__path__", [str(tmp_path)])
    assert data_path() == says


def test_version_does_not_wait_for_the_proxy() -> None:
    code = "import sys; from steelyard.cli.main import main\ntry: main()\nexcept SystemExit: print([*sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code, "version"], capture_output=True, text=True, timeout=50, check=True
    )
    loaded = done.stdout.splitlines()[-1]
    # typer itself loads pydantic.
    for module in ("'steelyard.proxy", "'steelyard.config.schema'", "'fastapi'", "'uvloop'", "'yaml'"):
        assert module not in loaded


def test_help_names_every_command() -> None:
    done = steelyard("--help")
    assert done.returncode == 0
    for command in ("check", "version"):
        assert command in done.stdout
    assert steelyard().returncode == 2, "no command is a mistake, and shows the help"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    if find_spec(f"steelyard.cli.{command}") is None:
        pytest.skip(f"steelyard.cli.{command} is not there")
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert f"steelyard {command}" in result.output


def test_every_setting_is_a_flag_of_serve() -> None:
    flags = {flag for option in LazyGroup().get_command(None, "serve").params for flag in option.opts}
    assert {setting.flag for setting in SETTINGS} <= flags


@pytest.mark.parametrize("arguments", [["vresion"], ["version", "--jsno"], ["check", "a", "b"]])
def test_a_wrong_command_line_is_exit_code_2(arguments: list[str]) -> None:
    done = steelyard(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_check_of_a_right_file(tmp_path: Path) -> None:
    file = tmp_path / "steelyard.yaml"
    file.write_text(
        "nodes:\n  - {url: 'http://a:8000', gpu_memory: 24GB, api_key: very-secret, models: [m]}\n"
        "auth: {keys: [{key: very-secret, tenant: art}]}\naliases: {x: m}\n"
        "routes: [{name: images, match: {path: /sdapi/*, models: [sd-*], headers: {x-team: art}}, policy: random}]\n"
    )
    for done in (
        steelyard("check", str(file)),
        steelyard("check", cwd=tmp_path),
        steelyard("check", STEELYARD_CONFIG=str(file)),
    ):
        assert done.returncode == 0
        assert "is valid" in done.stdout
        assert "a:8000  http://a:8000, auto, 24GB, models m" in done.stdout
        assert "images: path /sdapi/*, models sd-*, headers x-team=art -> random, memory enforce" in done.stdout
        assert "alias    x -> m" in done.stdout
        assert "1 key for art" in done.stdout
        assert "very-secret" not in done.stdout
    summary = json.loads(steelyard("check", "--json", str(file)).stdout)
    assert summary["valid"] is True
    assert summary["nodes"][0]["gpu_memory"] == 24 * 10**9
    assert summary["tenants"] == ["art"]
    assert "very-secret" not in json.dumps(summary)


DOUBTS: list[tuple[str, dict[str, str], list[str]]] = [
    ("", {}, []),
    ("", {"STEELYARD_PORT": "tcp://10.0.0.1:80", "STEELYARD_SERVICE_HOST": "10.0.0.1"}, []),
    ("", {"STEELYARD_NODES": "http://b"}, ["the variable STEELYARD_NODES is not read; did you mean STEELYARD_NODE?"]),
    (
        "admin: 0.0.0.0:9901",
        {},
        [
            "admin: 0.0.0.0 can be reached from other machines, so the admin API needs a token: set "
            "STEELYARD_ADMIN_TOKEN, or listen on 127.0.0.1"
        ],
    ),
    ("admin: 0.0.0.0:9901", {"STEELYARD_ADMIN_TOKEN": "right-one"}, []),
    (
        "nodes: [{url: a, gpu_memory: 24GB}]",
        {},
        [
            "gpu_memory and memory: enforce veto nothing: no route has footprints that say the memory of a request, so "
            "it counts as 0"
        ],
    ),
    ("nodes: [{url: a, gpu_memory: 24GB}]\ndefaults: {memory: ignore}", {}, []),
    ("nodes: [{url: a, gpu_memory: 24GB}]\ntrust: {proxies: [10.0.0.0/8]}", {}, []),
    (
        "nodes: [{url: a, gpu_memory: 24GB}]\n"
        "routes: [{name: x, match: {path: /x}, footprints: [{when: {width: 512}, memory: 8GB}]}, {name: rest}]",
        {},
        [],
    ),
]


@pytest.mark.parametrize(("text", "variables", "expected"), DOUBTS)
def test_check_warns_of_what_is_allowed_and_probably_not_meant(
    tmp_path: Path, text: str, variables: dict[str, str], expected: list[str]
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text if "nodes:" in text else f"nodes: [{{url: a}}]\n{text}")
    done = steelyard("check", str(file), **variables)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [f"warning: {line}" for line in expected]
    assert json.loads(steelyard("check", "--json", str(file), **variables).stdout)["warnings"] == expected


def test_check_of_a_wrong_file_is_exit_code_2_and_a_line_for_each_problem(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("nodes:\n  - url: http://a:8000\n    gpu_memory: 24GX\nlisen: x\n")
    done = steelyard("check", str(file))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"{file}:3: nodes[0].gpu_memory: '24GX' is not a size; write e.g. 24GB or 24GiB (a bare number is whole bytes)",
        f"{file}:4: lisen: unknown key; did you mean listen?",
    ]
    done = steelyard("check", "--json", str(file))
    assert done.returncode == 2
    answer = json.loads(done.stdout)
    assert answer["valid"] is False
    assert [(problem["line"], problem["path"]) for problem in answer["problems"]] == [
        (3, "nodes[0].gpu_memory"),
        (4, "lisen"),
    ]


def test_check_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = steelyard("check", "nowhere.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "nowhere.yaml: cannot be read: no such file or directory\n")
    done = steelyard("check", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "steelyard.yaml: cannot be read: no such file or directory\n")


def test_check_prints_the_schema() -> None:
    result = CliRunner().invoke(app, ["check", "--schema"])
    assert result.exit_code == 0
    schema = json.loads(result.output)
    assert schema["additionalProperties"] is False
    assert {"listen", "nodes", "routes", "limits"} <= set(schema["properties"])


def test_a_wrong_configuration_is_exit_code_2_inside_the_process_too(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("")
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 2
    assert result.stderr == f"{file}: is empty; write at least nodes: with one url\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--access-log", "nowhere/log"], "cannot write the access log 'nowhere/log': no such file or directory"),
        (["--access-log", "."], "cannot write the access log '.': is a directory"),
        (["--listen", "no-such-host.invalid:8080"], "cannot listen on no-such-host.invalid:8080: "),
        (["--listen", f"{'a' * 64}:8080"], "--listen: 'a"),
    ],
)
def test_serve_that_cannot_start_is_exit_code_2_and_one_line(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    given = ["serve", "--node", "127.0.0.1:9", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *arguments]
    done = steelyard(*given, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(message)
    assert "unknown error" not in line


def test_what_nobody_caught_is_one_line_like_all_others(capsys: pytest.CaptureFixture[str]) -> None:
    from steelyard.cli.serve import _log_error, log_to_stderr

    log_to_stderr()
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        _log_error(structlog.get_logger(), {"message": "a step failed", "exception": error})
    finally:
        structlog.reset_defaults()
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "a step failed"
    assert "ValueError: two" in json.loads(line)["exception"]
