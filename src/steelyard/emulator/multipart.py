"""Reads a whole multipart/form-data body. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass


class BadForm(ValueError):
    """The body is not the multipart form that its content type announces."""


@dataclass(frozen=True)
class Part:
    """One field; ``filename`` is None unless it is a file."""

    data: bytes
    filename: str | None = None
    content_type: str = ""

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


_BOUNDARY = re.compile(r'boundary=(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)
_PARAMETER = re.compile(rb'\b(filename|name)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)


def read_form(content_type: str, body: bytes) -> dict[str, Part]:
    """Fields by name (of repeated ones the last). Raises BadForm."""
    if not content_type.lower().startswith("multipart/form-data"):
        raise BadForm(f"the content type must be multipart/form-data, not {content_type or 'absent'}")
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise BadForm("the content type names no boundary")
    delimiter = b"--" + (found.group(1) or found.group(2)).encode("latin-1")
    pieces = (b"\r\n" + body).split(b"\r\n" + delimiter)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise BadForm("the form does not end with its closing boundary")
    form: dict[str, Part] = {}
    for piece in pieces[1:-1]:
        head, separator, data = piece.lstrip(b" \t").partition(b"\r\n\r\n")
        if not separator:
            raise BadForm("a part of the form has no blank line after its headers")
        name, part = _read_part(head, data)
        form[name] = part
    return form


def _read_part(head: bytes, data: bytes) -> tuple[str, Part]:
    disposition = b""
    content_type = ""
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            disposition = value
        elif key.strip().lower() == b"content-type":
            content_type = value.strip().decode("latin-1")
    values = {key.lower(): value.decode("utf-8", "replace") for key, value in _PARAMETER.findall(disposition)}
    if b"name" not in values:
        raise BadForm("a part of the form has no name")
    return values[b"name"], Part(data, values.get(b"filename"), content_type)
