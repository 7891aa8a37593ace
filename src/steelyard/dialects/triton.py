"""NVIDIA Triton's HTTP API, and KServe's open inference protocol v2, which it is a superset of."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

import msgspec

from steelyard.core.work import Work
from steelyard.dialects.body import LONGEST_NAME, longer
from steelyard.dialects.operation import Operation

_MODEL: Final = re.compile(rb"/+v2/+models/+([^/?#]+)")
_ESCAPED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")


class TritonOperation(Operation):
    """A path under /v2. The model is in the path, and nothing of the body is needed: tensors pass unread.

    Not repeatable, but for the GETs: a request may be a step of a sequence. A version in the path is one of the
    model's on the node and the node's affair; `Work.version` is a roll-out's.
    """

    __slots__ = ("stream",)

    def __init__(self, name: str, *, stream: bool = False, repeatable: bool = False) -> None:
        super().__init__("triton", name, repeatable=repeatable)
        self.stream = stream

    def read(self, body: bytes, content_type: bytes, target: bytes) -> Work:
        match = _MODEL.match(target)
        model = None if match is None else model_name(match[1])
        if model is not None and len(model) > LONGEST_NAME:
            raise longer("the model's name in the path")
        return Work("triton", self.name, model, stream=self.stream, repeatable=self.repeatable, body_bytes=len(body))

    def replace_target(self, target: bytes, model: str) -> bytes:
        match = _MODEL.match(target)
        if match is None:
            return target
        return target[: match.start(1)] + quote(model, safe="").encode("ascii") + target[match.end(1) :]

    def error(self, status: int, code: str, message: str, request_id: str) -> bytes:
        """Triton's own has `error` alone; `code` is the gateway's."""
        return msgspec.json.encode({"error": message, "code": code})


def model_name(segment: bytes) -> str:
    """A segment of a path without its percent-encoding."""
    if b"%" in segment:
        segment = _ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), segment)
    return segment.decode("utf-8", "replace")
