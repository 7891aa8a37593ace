"""The API of AUTOMATIC1111's Stable Diffusion web UI and of Forge."""

from __future__ import annotations

from math import ceil, isfinite
from typing import ClassVar, Final

import msgspec

from steelyard.core.cost import PIXEL_EXPONENT
from steelyard.core.work import Work
from steelyard.dialects.body import LARGEST_SIDE, MOST_IMAGES, MOST_STEPS, BodyReader, size
from steelyard.dialects.json_operation import JSONOperation
from steelyard.dialects.operation import LARGE_BODY, MalformedBody, Operation
from steelyard.dialects.sdwebui_fields import PictureFields

SIDE: Final = 512
STEPS: Final = 50
HR_SCALE: Final = 2.0
LARGEST_SCALE: Final = 64.0
"""The defaults of the API; the web UI itself allows a scale of 4."""


def sdwebui_error(code: str, message: str) -> bytes:
    """The four keys of its exception handler; people read `errors`, and FastAPI's clients `detail`."""
    return msgspec.json.encode({"error": code, "detail": message, "body": "", "errors": message})


class WebUIOperation(Operation):
    """A path under /sdapi or /internal of whose request nothing needs to be known."""

    __slots__ = ()

    def error(self, status: int, code: str, message: str, request_id: str) -> bytes:
        return sdwebui_error(code, message)


class Pictures(JSONOperation[PictureFields]):
    """POST /sdapi/v1/txt2img and img2img.

    With `enable_hr` there are two passes, and the larger one (nearly always the second) decides the memory: `width`
    and `height` are its, and `steps` are the steps at that size that cost as much as both passes.
    """

    __slots__ = ()
    reader: ClassVar = BodyReader(PictureFields)
    model_path: ClassVar[tuple[str, ...]] = ("override_settings", "sd_model_checkpoint")
    longest: ClassVar[int] = LARGE_BODY
    """The settings may be many; smaller bodies may have as much of them."""

    def fill(self, work: Work, fields: PictureFields) -> None:
        settings = fields.override_settings
        if settings is not None:
            work.model = settings.sd_model_checkpoint
        work.width = size(fields.width, SIDE, LARGEST_SIDE)
        work.height = size(fields.height, SIDE, LARGEST_SIDE)
        work.steps = size(fields.steps, STEPS, MOST_STEPS)
        work.images = size(size(fields.batch_size, 1) * size(fields.n_iter, 1), 1, MOST_IMAGES)
        if fields.hr_scale is not None and not isfinite(fields.hr_scale):
            # JSON has no such number, but the text "nan" is taken for one.
            raise MalformedBody(f"hr_scale must be a number, not {fields.hr_scale}")
        if fields.enable_hr and self.name == "txt2img":
            add_second_pass(work, fields)

    def error(self, status: int, code: str, message: str, request_id: str) -> bytes:
        return sdwebui_error(code, message)


def add_second_pass(work: Work, fields: PictureFields) -> None:
    """Write the size of the larger pass, and the steps at that size that cost as much as both, into the Work."""
    width, height = second_pass_size(work.width, work.height, fields)
    steps = size(fields.hr_second_pass_steps, work.steps, MOST_STEPS)
    first, second = work.width * work.height, width * height
    if second < first:
        work.steps += ceil(steps * (second / first) ** PIXEL_EXPONENT)
    else:
        work.steps = steps + ceil(work.steps * (first / second) ** PIXEL_EXPONENT)
        work.width = width
        work.height = height


def second_pass_size(width: int, height: int, fields: PictureFields) -> tuple[int, int]:
    """Pixels of the second pass: `hr_resize_x` and `_y`, of which one follows the other, else `hr_scale`."""
    x = size(fields.hr_resize_x, 0, LARGEST_SIDE)
    y = size(fields.hr_resize_y, 0, LARGEST_SIDE)
    if x and y:
        return x, y
    if x:
        return x, size(x * height // width, 1, LARGEST_SIDE)
    if y:
        return size(y * width // height, 1, LARGEST_SIDE), y
    scale = HR_SCALE if fields.hr_scale is None or fields.hr_scale <= 0 else min(fields.hr_scale, LARGEST_SCALE)
    return size(int(width * scale), 1, LARGEST_SIDE), size(int(height * scale), 1, LARGEST_SIDE)
