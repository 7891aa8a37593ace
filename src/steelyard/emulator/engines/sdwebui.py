"""An AUTOMATIC1111 Stable Diffusion web UI with ``--api`` (model-servers 12.1), and OpenAI images beside it.

Unlike the real one it does not serialize its jobs unless ``concurrency`` is 1: several workers on one card is how the
article's nodes ran out of memory.
"""

from __future__ import annotations

import base64
import re
import time
from typing import TYPE_CHECKING, Any

from steelyard.emulator.engines.base import CardEngine, Refusal, Telemetry, encode
from steelyard.emulator.exchange import Exchange
from steelyard.emulator.execution import Execution
from steelyard.emulator.png import picture
from steelyard.emulator.text import fingerprint

if TYPE_CHECKING:
    from steelyard.emulator.node import EmulatedNode

# These samplers evaluate the UNet twice a step (model-servers 12.1).
SECOND_ORDER = ("heun", "dpm2", "dpm++ sde")
# Reading a 2-4 GB checkpoint from a local disk.
CHECKPOINT_SECONDS = 4.0
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
_OOM = "CUDA out of memory"


class SdWebui(CardEngine):
    cancels_on_disconnect = False
    health_paths = frozenset({"/internal/ping"})

    def __init__(self, node: EmulatedNode) -> None:
        super().__init__(node)
        self.checkpoint = self.models[0]
        self.work = {
            "/sdapi/v1/txt2img": self.txt2img,
            "/sdapi/v1/img2img": self.img2img,
            "/v1/images/generations": self.openai_images,
        }
        self.plain = {
            ("GET", "/sdapi/v1/options"): self.options,
            ("POST", "/sdapi/v1/options"): self.set_options,
            ("GET", "/sdapi/v1/sd-models"): self.sd_models,
            ("GET", "/internal/ping"): lambda exchange: self.json(exchange, {}),
            ("GET", "/v1/models"): self.model_list,
        }
        self.plain_patterns = [("GET", re.compile(r"/v1/models/(.+)"), self.one_model)]
        self.telemetry = {
            "/sdapi/v1/progress": Telemetry("application/json", self.progress),
            "/sdapi/v1/memory": Telemetry("application/json", self.memory),
            "/internal/pending-tasks": Telemetry("application/json", self.pending_tasks),
        }

    # -- work ----------------------------------------------------------------------------------------------------

    def txt2img(self, exchange: Exchange, execution: Execution) -> None:
        self._generate(exchange, execution, exchange.request.json(), "txt2img")

    def img2img(self, exchange: Exchange, execution: Execution) -> None:
        body = exchange.request.json()
        if not isinstance(body.get("init_images"), list) or not body["init_images"]:
            raise Refusal(404, "Init image not found")
        self._generate(exchange, execution, body, "img2img")

    def _generate(self, exchange: Exchange, execution: Execution, body: dict[str, Any], task: str) -> None:
        width, height = _integer(body, "width", 512), _integer(body, "height", 512)
        steps = _integer(body, "steps", 50)
        batch, rounds = _integer(body, "batch_size", 1), _integer(body, "n_iter", 1)
        tables = self.profile.images
        passes = 2 if str(body.get("sampler_name") or "").lower().startswith(SECOND_ORDER) else 1
        guided = 1.0 if _number(body, "cfg_scale", 7.0) > 1 else 0.5  # without guidance the UNet batch is half
        pixels = width * height
        seconds = tables.job_seconds(pixels, steps * passes * guided, batch)
        if body.get("enable_hr"):
            scale = _number(body, "hr_scale", 2.0)
            target = (_integer(body, "hr_resize_x", 0, 0) or round(width * scale)) * (
                _integer(body, "hr_resize_y", 0, 0) or round(height * scale)
            )
            more = _integer(body, "hr_second_pass_steps", 0, 0) or steps
            seconds += tables.job_seconds(target, more * passes * guided, batch)
            pixels = max(pixels, target)
        seconds = seconds * rounds + self._switch(body)
        seed = _integer(body, "seed", -1, -1)
        if seed < 0:
            seed = fingerprint(self.node.seed, exchange.request.body)
        execution.model = self.checkpoint
        parameters = {key: value for key, value in body.items() if key != "init_images"}

        def respond() -> None:
            seeds = [seed + index for index in range(batch * rounds)]
            images = [base64.b64encode(picture(width, height, each)).decode() for each in seeds]
            info = {
                "prompt": body.get("prompt", ""),
                "seed": seed,
                "all_seeds": seeds,
                "width": width,
                "height": height,
                "steps": steps,
                "batch_size": batch,
                "sd_model_name": self.checkpoint,
            }
            self.json(exchange, {"images": images, "parameters": parameters, "info": encode(info).decode()})

        self.run(
            exchange, execution, tables.job_memory(pixels * batch), seconds, respond, f"task({task}-{execution.id})"
        )

    def _switch(self, body: dict[str, Any]) -> float:
        """Seconds of loading another checkpoint, when ``override_settings`` names one."""
        override = body.get("override_settings")
        wanted = override.get("sd_model_checkpoint") if isinstance(override, dict) else None
        if wanted is None or wanted == self.checkpoint:
            return 0.0
        self._require(wanted)
        self.checkpoint = wanted
        return CHECKPOINT_SECONDS

    def _require(self, checkpoint: Any) -> None:
        if checkpoint not in self.models:
            raise Refusal(500, f"model {checkpoint!r} not found; on disk: {', '.join(self.models)}")

    def openai_images(self, exchange: Exchange, execution: Execution) -> None:
        body = exchange.request.json()
        if not isinstance(body.get("prompt"), str):
            raise Refusal(400, "prompt: Field required", "prompt")
        model = body.get("model") or self.models[0]
        if model not in self.models:
            raise Refusal(404, f"The model `{model}` does not exist.", "model")
        count = _integer(body, "n", 1)
        if count > 10:
            raise Refusal(400, f"n must be from 1 to 10, not {count}", "n")
        size = body.get("size") or "auto"
        found = _SIZE.fullmatch("1024x1024" if size == "auto" else str(size))
        if found is None:
            raise Refusal(400, f"size must be WIDTHxHEIGHT such as 512x512, not {size!r}", "size")
        width, height = int(found[1]), int(found[2])
        steps = _integer(body, "num_inference_steps", 50)
        tables = self.profile.images
        seed = fingerprint(self.node.seed, exchange.request.body)
        execution.model = model

        def respond() -> None:
            data = [
                {"b64_json": base64.b64encode(picture(width, height, seed + each)).decode()} for each in range(count)
            ]
            self.json(
                exchange,
                {"created": int(time.time()), "data": data, "output_format": "png", "size": f"{width}x{height}"},
            )

        self.run(
            exchange,
            execution,
            tables.job_memory(width * height * count),
            tables.job_seconds(width * height, steps, count),
            respond,
        )

    # -- settings and telemetry ----------------------------------------------------------------------------------

    def options(self, exchange: Exchange) -> None:
        self.json(exchange, {"sd_model_checkpoint": self.checkpoint, "samples_format": "png"})

    def set_options(self, exchange: Exchange) -> None:
        wanted = exchange.request.json().get("sd_model_checkpoint")
        if wanted is None or wanted == self.checkpoint:
            self.json(exchange, None)
            return
        self._require(wanted)
        self.checkpoint = wanted
        self.node.clock.call_later(CHECKPOINT_SECONDS, self.json, exchange, None)

    def sd_models(self, exchange: Exchange) -> None:
        self.json(
            exchange,
            [
                {
                    "title": model,
                    "model_name": model,
                    "hash": f"{fingerprint(0, model.encode()):08x}",
                    "sha256": None,
                    "filename": f"models/Stable-diffusion/{model}.safetensors",
                    "config": None,
                }
                for model in self.models
            ],
        )

    def progress(self) -> bytes:
        active = self.gpu.active
        done, left, label = 0.0, 0.0, ""
        if active:
            job = active[0]
            label = job.label
            if job in self.gpu.processor and job.work > 0:
                left = self.gpu.processor.remaining(self.node.clock.now(), job)
                done = min(1.0, max(0.0, 1 - left / job.work))
        steps = 50 if active else 0
        return encode(
            {
                "progress": round(done, 4),
                "eta_relative": round(left * len(active), 3),
                "state": {
                    "skipped": False,
                    "interrupted": False,
                    "stopping_generation": False,
                    "job": label,
                    "job_count": len(active),
                    "job_timestamp": time.strftime("%Y%m%d%H%M%S") if active else "0",
                    "job_no": 0,
                    "sampling_step": int(done * steps),
                    "sampling_steps": steps,
                },
                "current_image": None,
                "textinfo": None,
                "current_task": label or None,
            }
        )

    def memory(self) -> bytes:
        card = self.card
        # The driver sees what PyTorch's allocator keeps, not what tensors hold.
        system = {"free": card.total - card.reserved, "used": card.reserved, "total": card.total}
        return encode(
            {
                "ram": {"free": 48 * 10**9, "used": 16 * 10**9, "total": 64 * 10**9},
                "cuda": {
                    "system": system,
                    "active": {"current": card.allocated, "peak": card.peak},
                    "allocated": {"current": card.allocated, "peak": card.peak},
                    "reserved": {"current": card.reserved, "peak": card.reserved},
                    "inactive": {"current": card.reserved - card.allocated, "peak": card.reserved},
                    "events": {"retries": 0, "oom": card.oom_count},
                },
            }
        )

    def pending_tasks(self) -> bytes:
        queued = self.gpu.queued
        return encode({"size": len(queued), "tasks": [job.label for job in queued]})

    def refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        status, message = refusal.status, refusal.message
        if exchange.request.path.startswith("/v1/"):
            kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
            body: dict[str, Any] = {
                "error": {"message": message, "type": kind, "param": refusal.param, "code": status},
            }
        elif status in (404, 405):
            body = {"error": "HTTPException", "detail": message, "body": "", "errors": message}
        elif status in (400, 422):
            status = 422  # what FastAPI answers to a body that does not validate
            body = {"detail": [{"loc": ["body", refusal.param or ""], "msg": message, "type": "value_error"}]}
        else:
            error = "OutOfMemoryError" if message.startswith(_OOM) else "RuntimeError"
            body = {"error": error, "detail": "", "body": "", "errors": message}
        self.json(exchange, body, status)


def _integer(body: dict[str, Any], name: str, default: int, least: int = 1) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Refusal(400, f"{name} must be a whole number of at least {least}, not {value!r}", name)
    return value


def _number(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refusal(400, f"{name} must be a number, not {value!r}", name)
    return float(value)
