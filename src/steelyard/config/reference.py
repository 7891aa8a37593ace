"""docs/configuration.md, made from the schema: `python -m steelyard.config.reference --write FILE | --check FILE`."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from steelyard.config.explain import section_in
from steelyard.config.load import SETTINGS
from steelyard.config.release import CHOICES_NOT_AVAILABLE, is_available
from steelyard.config.schema import Config
from steelyard.config.values import Kind

_HEAD = """\
# Configuration

<!-- Made from src/steelyard/config/schema.py by `make docs`. Change the descriptions there. -->

`steelyard serve --config steelyard.yaml` reads one YAML file; `steelyard check steelyard.yaml` says whether it is right
and what it means. A key that is unknown, a value that is wrong and keys that contradict are refused, all at once, each
with file, line, value and the nearest right one:

```text
steelyard.yaml:14: nodes[1].gpu_memory: '24GX' is not a size; write e.g. 24GB or 24GiB (a bare number is whole bytes)
```

The smallest file that does something:

```yaml
nodes:
  - url: http://10.0.0.1:8000
  - url: http://10.0.0.2:8000
```

## Values

| kind | written | means |
|---|---|---|
| size | `24GB` `24GiB` `512MB` `512MiB` `64KiB`, or a bare number | bytes; GB is 1000³, GiB 1024³: 7 % apart |
| duration | `250ms` `30s` `5m` `1h`, or a bare number | seconds |
| share | `30%` or `0.3` | a part of the whole |
| address | `0.0.0.0:8080` `[::1]:8080` `:8080` | where to listen; port 0 is any free port |
| secret text | text | never shown: not in messages, logs or answers |

Types are those of YAML 1.2: `on`, `off`, `yes` and `no` are text where text is wanted. A version such as `1.10` is a
number in YAML and needs quotes: `'1.10'`.

`${NAME}` is replaced by that variable of the environment. It may be a part of a value; a variable that is not set is an
error; `$${NAME}` is the text `${NAME}` itself. What came out of the environment is shown as `***` in messages.

## Precedence

A flag wins over a variable of the environment, which wins over the file, which wins over the default. `--config` is
`STEELYARD_CONFIG`. `--node` may be given several times (the variable: with commas between) and replaces the `nodes` of
the file.

Two variables belong to the admin listener, and have neither a flag nor a key:

- `STEELYARD_ADMIN_TOKEN` is what `Authorization: Bearer` must carry for the admin API. Without it the API is open to
  this machine, and an `admin` address that others can reach is refused. `/health`, `/ready` and `/metrics` need none.
- `STEELYARD_ADMIN_HOSTS` are further names, with commas or spaces between, by which the admin API may be asked (the
  `Host` header), such as that of a proxy in front. Every other name is refused, against DNS rebinding.

"""

_EXAMPLES = """\
## Examples

Image generation on cards of 24 GB, where memory decides, beside a chat model:

```yaml
listen: 0.0.0.0:8080
nodes:
  - {name: sd-1, url: http://10.0.0.1:7860, engine: sdwebui, gpu_memory: 23GiB}
  - {name: sd-2, url: http://10.0.0.2:7860, engine: sdwebui, gpu_memory: 23GiB}
  - {name: llm-1, url: http://10.0.0.3:8000, engine: vllm, models: [llama-3.1-8b]}
aliases:
  gpt-4: llama-3.1-8b            # clients that insist on a name
defaults:
  queue: {size: 200, wait: 20s}
routes:
  - name: images
    match: {path: /sdapi/*}
    footprints:                  # the first row that fits counts: the smallest first
      - {when: {width: 512, height: 512}, memory: 8GB, seconds: 2}
      - {when: {width: 1024, height: 1024}, memory: 18GB, seconds: 8}
    timeouts: {total: 5m}
  - name: chat
    match: {path: /v1/*, models: [llama-*]}
```

Two tenants with keys, a proxy in front, and a provider whose own key the clients never see:

```yaml
listen: 127.0.0.1:8080
auth:
  keys:
    - {key: "${ART_KEY}", tenant: art}
    - {key: "${LAB_KEY}", tenant: lab}
trust: {proxies: [10.0.0.0/8]}
nodes:
  - url: http://10.0.0.1:8000
  - {name: cloud, url: https://llm.example/openai, engine: openai, tier: cloud, api_key: "${CLOUD_KEY}"}
limits: {body: 16MiB}
access_log: /var/log/steelyard.jsonl
shutdown: {delay: 10s, grace: 2m}
```

The naive balancer, for comparison:

```yaml
nodes: [{url: http://10.0.0.1:8000, weight: 2}, {url: http://10.0.0.2:8000}]
defaults: {policy: weighted-round-robin, memory: ignore}
```
"""


def reference() -> str:
    """The text of docs/configuration.md."""
    parts = [_HEAD, "| key | flag | variable |\n|---|---|---|\n"]
    parts += [f"| `{setting.path}` | `{setting.flag}` | `{setting.variable}` |\n" for setting in SETTINGS]
    parts.append("\n## Keys\n\n")
    for title, section in _sections(Config, ""):
        parts.append(f"### {f'`{title}`' if title else 'Top level'}\n\n{(section.__doc__ or '').strip()}\n\n")
        parts.append("| key | kind | default | meaning |\n|---|---|---|---|\n")
        parts += [_row(section, title, name) for name in section.model_fields]
        parts.append("\n")
    parts.append(_EXAMPLES)
    return "".join(parts)


def _sections(section: type[BaseModel], title: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """``section`` and all inside it, each once, outermost first. What a route shares with defaults is listed there."""
    yield title, section
    for name, field in section.model_fields.items():
        inner = section_in(field.annotation)
        path = _path(title, name, field.annotation)
        repeated = title == "routes[]" and name in Config.model_fields["defaults"].annotation.model_fields  # type: ignore[union-attr]
        if inner is not None and is_available(path.removesuffix("[]")) and not repeated:
            yield from _sections(inner, path)


def _path(title: str, name: str, annotation: Any) -> str:
    suffix = "[]" if _kind(annotation).startswith("list") else ""
    return f"{title}.{name}{suffix}".lstrip(".")


def _row(section: type[BaseModel], title: str, name: str) -> str:
    field = section.model_fields[name]
    annotation = get_type_hints(section, include_extras=True)[name]
    if field.is_required():
        default = "required"
    elif field.default in (None, PydanticUndefined) or isinstance(field.default, BaseModel):
        default = ""
    else:
        default = f"`{_written(field.default, annotation)}`"
    meaning = field.description or ""
    if not is_available(f"{title}.{name}".lstrip(".")):
        meaning = f"*Not in this release.* {meaning}"
    return f"| `{name}` | {_kind(annotation)} | {default} | {meaning} |\n".replace("|  |", "| |")


def _kind(annotation: Any) -> str:
    """What a person calls values of this type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kinds = [item for item in arguments[1:] if isinstance(item, Kind)]
        return kinds[0].name if kinds else _kind(arguments[0])
    if origin in (Union, types.UnionType):
        return ", ".join(_kind(argument) for argument in arguments if argument is not type(None))
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments if choice not in CHOICES_NOT_AVAILABLE)
    if origin is tuple:
        return f"list of {_kind(arguments[0])}" if section_in(arguments[0]) is None else "list"
    if origin is dict:
        return f"mapping to {_kind(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return {bool: "`true`, `false`", str: "text", int: "number", float: "number"}.get(annotation, str(annotation))


def _written(value: Any, annotation: Any) -> str:
    """A default as it would be written in the file."""
    if get_origin(annotation) is Annotated:
        for item in get_args(annotation)[1:]:
            if isinstance(item, Kind):
                return item.write(value)
        annotation = get_args(annotation)[0]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(str(item) for item in value)}]"
    return str(value)


def main(arguments: list[str]) -> int:
    """Write the file, or check that it is as it would be written. The exit code."""
    if len(arguments) != 2 or arguments[0] not in ("--write", "--check"):
        print("usage: python -m steelyard.config.reference --write FILE | --check FILE", file=sys.stderr)
        return 2
    path = Path(arguments[1])
    if arguments[0] == "--write":
        path.write_text(reference(), encoding="utf-8")
        return 0
    if not path.exists() or path.read_text(encoding="utf-8") != reference():
        print(f"{path} is not what the schema says; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
