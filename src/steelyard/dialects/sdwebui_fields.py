"""What is read of requests of the Stable Diffusion web UI; the rest of them goes by unread.

Apart from `sdwebui.py`, since the compiler of the data path does not know msgspec's Structs.
"""

from __future__ import annotations

from msgspec import Struct

from steelyard.dialects.body import Name


class OverrideSettings(Struct, gc=False):
    sd_model_checkpoint: Name | None = None


class PictureFields(Struct, gc=False):
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    n_iter: int | None = None
    enable_hr: bool | None = None
    hr_scale: float | None = None
    hr_resize_x: int | None = None
    hr_resize_y: int | None = None
    hr_second_pass_steps: int | None = None
    override_settings: OverrideSettings | None = None
