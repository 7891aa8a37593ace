"""A Triton Inference Server with one text classifier a model name (model-servers 1): KServe v2 over HTTP, and a plain
``POST /classify`` as in the article of the five traps."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from steelyard.emulator.engines.base import CardEngine, Refusal, Telemetry, encode
from steelyard.emulator.exchange import Exchange
from steelyard.emulator.execution import Execution
from steelyard.emulator.exposition import Exposition
from steelyard.emulator.memory import Card
from steelyard.emulator.text import fingerprint

if TYPE_CHECKING:
    from steelyard.emulator.node import EmulatedNode

_GOOD = "good great excellent love loved like best happy wonderful fine amazing nice fast"
_BAD = "bad terrible awful hate hated worst sad poor broken slow angry horrible wrong"
POSITIVE = frozenset(_GOOD.split())
NEGATIVE = frozenset(_BAD.split())
# Context and weights of a BERT-size classifier, and the activations of one batch.
RESIDENT_BYTES = 2_000_000_000
JOB_BYTES = 50_000_000
SAMPLE_SECONDS = 2.0  # Triton polls the GPU every 2,000 ms (--metrics-interval-ms)
_MODEL = r"/v2/models/([^/]+)(?:/versions/([0-9]+))?"


class Triton(CardEngine):
    cancels_on_disconnect = False
    default_concurrency = 1  # instance_group count 1
    health_paths: ClassVar[frozenset[str]] = frozenset({"/v2/health/live", "/v2/health/ready"})

    def __init__(self, node: EmulatedNode) -> None:
        super().__init__(node)
        digits = "".join(char for char in self.profile.version if char.isdigit())
        self.version = digits or "1"
        self.success = dict.fromkeys(self.models, 0)
        self.failure = dict.fromkeys(self.models, 0)
        self.inferences = dict.fromkeys(self.models, 0)
        self.duration_us = dict.fromkeys(self.models, 0.0)
        self.queue_us = dict.fromkeys(self.models, 0.0)
        self._sampled_at = 0.0
        self._sampled_busy = 0.0
        self._utilization = 0.0
        self.work = {"/classify": self.classify}
        self.work_patterns = [
            (re.compile(_MODEL + "/infer"), self.infer),
            (re.compile(_MODEL + "/generate"), self.generate),
            (re.compile(_MODEL + "/generate_stream"), self.generate_stream),
        ]
        self.plain = {
            ("GET", "/v2"): self.server_metadata,
            ("GET", "/v2/health/live"): lambda exchange: exchange.answer(200, b"", ""),
            ("GET", "/v2/health/ready"): lambda exchange: exchange.answer(200, b"", ""),
            ("POST", "/v2/repository/index"): self.index,
        }
        self.plain_patterns = [
            ("GET", re.compile(_MODEL), self.model_metadata),
            ("GET", re.compile(_MODEL + "/ready"), self.model_ready),
            ("GET", re.compile(_MODEL + "/stats"), self.model_stats),
        ]
        self.telemetry = {"/metrics": Telemetry("text/plain; charset=utf-8", self.metrics)}

    def make_card(self) -> Card:
        resident = self.profile.resident
        return Card(self.profile.gpu_memory, RESIDENT_BYTES if resident is None else resident)

    # -- work ----------------------------------------------------------------------------------------------------

    def classify(self, exchange: Exchange, execution: Execution) -> None:
        text = exchange.request.json().get("text")
        if not isinstance(text, str):
            raise Refusal(400, 'the body must be {"text": "..."}')
        answer = {"label": self._label(text), "version": self.profile.version}
        self._compute(exchange, execution, self.models[0], 1, lambda: self.json(exchange, answer))

    def infer(self, exchange: Exchange, execution: Execution, model: str, version: str | None) -> None:
        self._require(model, version)
        document, raw = _split(exchange)
        inputs = document.get("inputs")
        if not isinstance(inputs, list) or not inputs or not isinstance(inputs[0], dict):
            raise Refusal(400, "Unable to parse 'inputs': attempt to access JSON non-array")
        tensor = inputs[0]
        if tensor.get("datatype") != "BYTES":
            raise Refusal(
                400,
                f"inference input '{tensor.get('name')}' data-type is '{tensor.get('datatype')}', "
                f"but model '{model}' expects 'BYTES'",
            )
        texts = _texts(tensor, raw)
        labels = [self._label(text) for text in texts]
        binary = _wants_binary(document)

        def respond() -> None:
            output: dict[str, Any] = {"name": "label", "datatype": "BYTES", "shape": [len(labels)]}
            reply: dict[str, Any] = {"model_name": model, "model_version": self.version, "outputs": [output]}
            if isinstance(document.get("id"), str):
                reply["id"] = document["id"]
            if binary:
                data = b"".join(struct.pack("<I", len(label)) + label.encode() for label in labels)
                output["parameters"] = {"binary_data_size": len(data)}
                head = encode(reply)
                header = (("Inference-Header-Content-Length", str(len(head))),)
                exchange.answer(200, head + data, "application/octet-stream", header)
            else:
                output["data"] = labels
                self.json(exchange, reply)

        self._compute(exchange, execution, model, len(texts), respond)

    def generate(self, exchange: Exchange, execution: Execution, model: str, version: str | None) -> None:
        self._require(model, version)
        text = _text_input(exchange)
        reply = {"model_name": model, "model_version": self.version, "text_output": self._label(text)}
        self._compute(exchange, execution, model, 1, lambda: self.json(exchange, reply))

    def generate_stream(self, exchange: Exchange, execution: Execution, model: str, version: str | None) -> None:
        self._require(model, version)
        text = _text_input(exchange)
        positive, negative = _counts(text)
        words = f"{self._label(text)} because of {positive} positive and {negative} negative words".split()

        def respond() -> None:
            exchange.start(200, "text/event-stream; charset=utf-8")
            for word in words:
                event = {"model_name": model, "model_version": self.version, "text_output": word + " "}
                exchange.write(b"data: " + encode(event) + b"\n\n")
            exchange.end()

        self._compute(exchange, execution, model, 1, respond)

    def _compute(self, exchange: Exchange, execution: Execution, model: str, items: int, respond: Any) -> None:
        execution.model = model

        def finished() -> None:
            now = self.node.clock.now()
            self.success[model] += 1
            self.inferences[model] += items
            self.duration_us[model] += (now - execution.arrived_at) * 1e6
            self.queue_us[model] += ((execution.started_at or now) - execution.arrived_at) * 1e6
            respond()

        seconds = self.profile.classify_seconds + self.profile.classify_item_seconds * items
        self.run(exchange, execution, JOB_BYTES, seconds, finished, model)

    def _label(self, text: str) -> str:
        """v1 knows positive and negative; from v2 on a text without a leaning is neutral."""
        positive, negative = _counts(text)
        if positive != negative:
            return "positive" if positive > negative else "negative"
        if int(self.version) >= 2:
            return "neutral"
        return "positive" if fingerprint(self.node.seed, text.encode()) & 1 else "negative"

    def _require(self, model: str, version: str | None) -> None:
        if model not in self.models:
            raise Refusal(404, f"Request for unknown model: '{model}' is not found")
        if version is not None and version != self.version:
            raise Refusal(404, f"Request for unknown model: '{model}' version {version} is not found")

    # -- the rest of KServe v2 -----------------------------------------------------------------------------------

    def server_metadata(self, exchange: Exchange) -> None:
        extensions = ["classification", "model_repository", "statistics", "binary_tensor_data", "generate"]
        self.json(exchange, {"name": "triton", "version": "2.73.0", "extensions": extensions})

    def model_metadata(self, exchange: Exchange, model: str, version: str | None) -> None:
        self._require(model, version)
        self.json(
            exchange,
            {
                "name": model,
                "versions": [self.version],
                "platform": "pytorch_libtorch",
                "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
                "outputs": [{"name": "label", "datatype": "BYTES", "shape": [-1]}],
            },
        )

    def model_ready(self, exchange: Exchange, model: str, version: str | None) -> None:
        try:
            self._require(model, version)
        except Refusal as refusal:
            raise Refusal(400, refusal.message) from None
        exchange.answer(200, b"", "")

    def model_stats(self, exchange: Exchange, model: str, version: str | None) -> None:
        self._require(model, version)
        success = {"count": self.success[model], "ns": round(self.duration_us[model] * 1000)}
        stats = {
            "name": model,
            "version": self.version,
            "inference_count": self.inferences[model],
            "execution_count": self.success[model],
            "inference_stats": {"success": success, "fail": {"count": self.failure[model], "ns": 0}},
        }
        self.json(exchange, {"model_stats": [stats]})

    def index(self, exchange: Exchange) -> None:
        rows = [{"name": name, "version": self.version, "state": "READY", "reason": ""} for name in self.models]
        self.json(exchange, rows)

    def refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        found = re.match(_MODEL, exchange.request.path)
        if found and found[1] in self.failure and exchange.request.method == "POST":
            self.failure[found[1]] += 1
        self.json(exchange, {"error": refusal.message}, refusal.status)

    # -- metrics -------------------------------------------------------------------------------------------------

    def metrics(self) -> bytes:
        page = Exposition()
        gpu = {"gpu_uuid": f"GPU-emulated-{self.node.name}"}
        counters = (
            ("nv_inference_request_success", "Number of successful inference requests", self.success),
            ("nv_inference_count", "Number of inferences performed", self.inferences),
            ("nv_inference_exec_count", "Number of model executions performed", self.success),
            ("nv_inference_request_duration_us", "Cumulative request duration in microseconds", self.duration_us),
            ("nv_inference_queue_duration_us", "Cumulative queuing duration in microseconds", self.queue_us),
        )
        for name, text, values in counters:
            page.family(name, "counter", text)
            for model in self.models:
                page.sample(name, {**gpu, "model": model, "version": self.version}, values[model])
        page.family("nv_inference_request_failure", "counter", "Number of failed inference requests")
        for model in self.models:
            labels = {**gpu, "model": model, "reason": "BACKEND", "version": self.version}
            page.sample("nv_inference_request_failure", labels, self.failure[model])
        page.family("nv_inference_pending_request_count", "gauge", "Requests awaiting execution per model")
        for model in self.models:
            pending = sum(job.label == model for job in self.gpu.queued)
            labels = {"model": model, "version": self.version}
            page.sample("nv_inference_pending_request_count", labels, pending)
        gauges = (
            ("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", self.utilization()),
            ("nv_gpu_memory_total_bytes", "GPU total memory in bytes", self.card.total),
            ("nv_gpu_memory_used_bytes", "GPU used memory in bytes", self.card.reserved),
        )
        for name, text, value in gauges:
            page.family(name, "gauge", text)
            page.sample(name, gpu, value)
        return page.text()

    def utilization(self) -> float:
        """Share of the last sample interval in which the card computed, 0..1."""
        now = self.node.clock.now()
        if now - self._sampled_at >= SAMPLE_SECONDS:
            busy = self.busy_seconds()
            self._utilization = min(1.0, (busy - self._sampled_busy) / (now - self._sampled_at))
            self._sampled_at, self._sampled_busy = now, busy
        return self._utilization


def _counts(text: str) -> tuple[int, int]:
    words = re.findall(r"[a-z]+", text.lower())
    return sum(word in POSITIVE for word in words), sum(word in NEGATIVE for word in words)


def _text_input(exchange: Exchange) -> str:
    text = exchange.request.json().get("text_input")
    if not isinstance(text, str):
        raise Refusal(400, "the request lacks the input 'text_input'")
    return text


def _split(exchange: Exchange) -> tuple[dict[str, Any], bytes]:
    """The JSON part and the raw tensors of the binary tensor extension."""
    request = exchange.request
    length = request.headers.get("inference-header-content-length")
    if length is None:
        return request.json(), b""
    if not length.isdigit() or int(length) > len(request.body):
        raise Refusal(400, f"Inference-Header-Content-Length {length!r} exceeds the body of {len(request.body)} bytes")
    try:
        document = msgspec.json.decode(request.body[: int(length)])
    except msgspec.DecodeError as error:
        raise Refusal(400, f"failed to parse the request JSON buffer: {error}") from None
    if not isinstance(document, dict):
        raise Refusal(400, "failed to parse the request JSON buffer: not an object")
    return document, request.body[int(length) :]


def _texts(tensor: dict[str, Any], raw: bytes) -> list[str]:
    parameters = tensor.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        data = tensor.get("data")
        if not isinstance(data, list):
            raise Refusal(400, "Unable to parse 'data': attempt to access JSON non-array")
        texts = [item for row in data for item in (row if isinstance(row, list) else [row])]
        if not all(isinstance(item, str) for item in texts):
            raise Refusal(400, "Unable to parse 'data': every element of a BYTES tensor must be a string")
        return texts
    if not isinstance(size, int) or size > len(raw):
        raise Refusal(400, f"binary_data_size {size} exceeds the {len(raw)} bytes after the JSON header")
    texts = []
    offset = 0
    while offset + 4 <= size:
        (length,) = struct.unpack_from("<I", raw, offset)
        if offset + 4 + length > size:
            raise Refusal(400, "a BYTES element is longer than the tensor")
        texts.append(raw[offset + 4 : offset + 4 + length].decode("utf-8", "replace"))
        offset += 4 + length
    return texts


def _wants_binary(document: dict[str, Any]) -> bool:
    parameters = document.get("parameters")
    if isinstance(parameters, dict) and parameters.get("binary_data_output") is True:
        return True
    outputs = document.get("outputs")
    if isinstance(outputs, list) and outputs and isinstance(outputs[0], dict):
        wanted = outputs[0].get("parameters")
        return isinstance(wanted, dict) and wanted.get("binary_data") is True
    return False
