"""From what pydantic says to what a person can act on: the value, what is wrong with it, and what would be right."""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from steelyard.config.document import KeyPath
from steelyard.config.release import CHOICES_NOT_AVAILABLE, is_available
from steelyard.config.route_schema import Defaults
from steelyard.config.schema import Config

HIDDEN = "***"
_LONGEST_VALUE = 80


def message_of(error: ErrorDetails, path: KeyPath, secret: bool) -> str:
    """One line, without the place, for one of pydantic's errors. A secret's value is not in it."""
    value = error["input"]
    kind = error["type"]
    context = error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path)
    if kind == "missing":
        return f"is missing; write {path[-1]}: {_example(path)}".rstrip()
    if kind == "value_error":
        return hidden(str(context["error"]), value) if secret else shortened(str(context["error"]), value)
    shown = HIDDEN if secret else show(value)
    if value is None:
        return f"has no value{_wanted(kind)}; write one, or leave the key out"
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in str(context["expected"]).replace(" or ", ", ").split(", ")]
        usable = [choice for choice in choices if choice not in CHOICES_NOT_AVAILABLE]
        return f"{shown} is not one of {', '.join(usable)}{'' if secret else _nearest(str(value), choices)}"
    if kind in ("int_parsing", "int_type", "int_from_float", "int_parsing_size"):
        return f"{shown} is not a whole number; write e.g. 4"
    if kind in ("float_parsing", "float_type"):
        return f"{shown} is not a number; write e.g. 1.5"
    if kind in ("bool_parsing", "bool_type"):
        return f"{shown} is not true or false"
    if kind == "string_type":
        return f"{shown} is not text"
    if kind == "tuple_type":
        return (
            f"{shown} is not a list; write [{shown}]"
            if isinstance(value, str) and not secret
            else f"{shown} is not a list"
        )
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        if len(path) == 2 and path[0] == "nodes" and isinstance(value, str) and not secret:
            # It may be a URL with a password in it.
            written = HIDDEN if "@" in value else shown
            return f"{written} is not a mapping of keys; write url: {written}"
        return f"{shown} is not a mapping of keys"
    if kind == "greater_than_equal":
        return f"{shown} is too small; the least is {context['ge']}"
    if kind == "too_short":
        return "is an empty list; write at least one, or leave the key out"
    return f"{shown}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def show(value: Any) -> str:
    """``value`` in a message: short, and without what a list or a mapping holds, which may be secret."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 4] + "...'"


def shortened(message: str, value: Any) -> str:
    """``message`` with a long ``value`` cut, and with None, True and lists named as YAML names them."""
    return message.replace(repr(value), "no value" if value is None else show(value))


def hidden(message: str, value: Any) -> str:
    """``message`` without the ``value`` in it."""
    for form in (repr(value), str(value)):
        if form:
            message = message.replace(form, HIDDEN)
    return message


def section_at(path: KeyPath) -> type[BaseModel] | None:
    """The model that describes the mapping at ``path``; None where there is none, or its keys are free."""
    section: Any = Config
    for key in path:
        if isinstance(key, int):
            continue
        if section is None or key not in section.model_fields:
            return None
        section = section_in(section.model_fields[key].annotation)
    return section if section is None or isinstance(section, type) else None


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as `tuple[Model, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Annotated, Union, types.UnionType, tuple):
        for argument in get_args(annotation):
            found = section_in(argument)
            if found is not None:
                return found
    return None


def _unknown_key(path: KeyPath) -> str:
    """What is said of a key that is not in the schema: the nearest right one, or those that can be written there."""
    key = str(path[-1])
    section = section_at(path[:-1])
    known = list(section.model_fields) if section else []
    normal = key.lower().replace("-", "_")
    near = difflib.get_close_matches(normal, known, n=1, cutoff=0.6)
    if section is Config:
        # A key that is right elsewhere was put in the wrong place.
        inherited = difflib.get_close_matches(normal, list(Defaults.model_fields), n=1, cutoff=0.75)
        if inherited and (not near or inherited[0] == normal):
            return f"unknown key; did you mean {inherited[0]}, under defaults: or in a route?"
    if near:
        return f"unknown key; did you mean {near[0]}?"
    prefix = "".join("[]" if isinstance(part, int) else f".{part}" for part in path[:-1]).lstrip(".")
    usable = [name for name in known if is_available(f"{prefix}.{name}".lstrip("."))]
    return f"unknown key; known here: {', '.join(usable)}" if usable else "unknown key"


def _nearest(value: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(value.lower().replace("_", "-"), choices, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


_EXAMPLES = {"url": "http://10.0.0.1:8000", "when": "{width: 512, height: 512}", "weight": "1", "name": "chat"}


def _example(path: KeyPath) -> str:
    return _EXAMPLES.get(str(path[-1]), "...")


def _wanted(kind: str) -> str:
    if kind == "tuple_type":
        return " (a list is expected)"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return " (a mapping is expected)"
    return ""
