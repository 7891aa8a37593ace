"""vLLM serving one model (model-servers 3), with continuous batching and the timing of an RTX 4090."""

from __future__ import annotations

import asyncio
import base64
import random
import re
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from steelyard.emulator.batching import ContinuousBatch, IterationTimes, Sequence
from steelyard.emulator.engines.base import ENGINE_DEAD, Engine, Refusal, Telemetry
from steelyard.emulator.engines.vllm_replies import ChatReply, CompletionReply, MessagesReply, Reply
from steelyard.emulator.engines.vllm_requests import (
    Ask,
    Limits,
    message_tokens,
    read_chat,
    read_completion,
    read_embeddings,
    read_messages,
)
from steelyard.emulator.exchange import Exchange
from steelyard.emulator.execution import Execution
from steelyard.emulator.exposition import CONTENT_TYPE, Exposition, Histogram
from steelyard.emulator.memory import Card
from steelyard.emulator.profile import EmulatorError
from steelyard.emulator.text import token

if TYPE_CHECKING:
    from steelyard.emulator.node import EmulatedNode

VERSION = "0.33.0"
# Llama-3.1-8B in bf16 leaves 41,408 tokens of KV on a 24 GB card at 90 % (policy-science 3.2), 131,072 bytes each.
KV_TOKENS_24GB = 41_408
KV_BYTES_PER_TOKEN = 131_072
MEMORY_SHARE = 0.9
DIMENSIONS = 384  # of an embedding without "dimensions"
_BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
_KINDS = {400: "BadRequestError", 404: "NotFoundError", 422: "UnprocessableEntityError", 503: "Service Unavailable"}
_ANTHROPIC_KINDS = {400: "invalid_request_error", 404: "not_found_error", 503: "overloaded_error"}
_LATENCIES = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class _Job:
    """One request in the engine and its sequences."""

    __slots__ = ("ask", "exchange", "execution", "left", "on_done", "reply", "sequences", "stall")

    def __init__(self, exchange: Exchange, execution: Execution, ask: Ask, reply: Reply | None) -> None:
        self.exchange = exchange
        self.execution = execution
        self.ask = ask
        self.reply = reply
        self.sequences: list[Sequence] = []
        self.left = len(ask.generations)
        self.stall: asyncio.TimerHandle | None = None
        self.on_done: Callable[[], None] | None = None


class Vllm(Engine):
    cancels_on_disconnect = True
    health_paths: ClassVar[frozenset[str]] = frozenset({"/health", "/ping"})

    def __init__(self, node: EmulatedNode) -> None:
        super().__init__(node)
        profile = node.profile
        kv_tokens = profile.kv_tokens
        if kv_tokens is None:
            extra = (profile.gpu_memory - 24_000_000_000) * MEMORY_SHARE / KV_BYTES_PER_TOKEN
            kv_tokens = KV_TOKENS_24GB + int(extra)
        if kv_tokens < 1024:
            raise EmulatorError(
                f"an 8B model leaves no room for its KV cache on {profile.gpu_memory} bytes; it needs about 19 GB"
            )
        self.times = IterationTimes()
        self.batch = ContinuousBatch(
            kv_tokens, times=self.times, speed=profile.speed, max_sequences=profile.max_sequences
        )
        self.limits = Limits(
            self.models, min(profile.max_context, self.batch.kv_tokens), profile.output_tokens, node.seed
        )
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.rejections = 0
        self.reasons = {"stop": 0, "length": 0, "abort": 0}
        self.first_token = Histogram(_LATENCIES)
        self.end_to_end = Histogram(_LATENCIES)
        self._jobs: dict[_Job, None] = {}
        self._streams = 0
        self._busy = 0.0
        self._busy_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self.work = {
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.completions,
            "/v1/messages": self.messages,
            "/v1/embeddings": self.embeddings,
        }
        self.plain = {
            ("GET", "/health"): self.health,
            ("GET", "/ping"): self.health,
            ("GET", "/version"): lambda exchange: self.json(exchange, {"version": VERSION}),
            ("GET", "/v1/models"): self.model_list,
            ("POST", "/v1/messages/count_tokens"): self.count_tokens,
        }
        self.plain_patterns = [("GET", re.compile(r"/v1/models/(.+)"), self.one_model)]
        self.telemetry = {"/metrics": Telemetry(CONTENT_TYPE, self.metrics)}

    def make_card(self) -> Card:
        resident = self.profile.resident
        # vLLM takes its share of the card at the start, whatever is asked of it later.
        return Card(
            self.profile.gpu_memory, int(self.profile.gpu_memory * MEMORY_SHARE) if resident is None else resident
        )

    # -- requests ------------------------------------------------------------------------------------------------

    def chat(self, exchange: Exchange, execution: Execution) -> None:
        ask = read_chat(exchange.request.json(), self.limits)
        self._accept(exchange, execution, ask, self._reply(ChatReply, "chatcmpl-", execution, ask))

    def completions(self, exchange: Exchange, execution: Execution) -> None:
        ask = read_completion(exchange.request.json(), self.limits)
        self._accept(exchange, execution, ask, self._reply(CompletionReply, "cmpl-", execution, ask))

    def messages(self, exchange: Exchange, execution: Execution) -> None:
        ask = read_messages(exchange.request.json(), self.limits)
        self._accept(exchange, execution, ask, self._reply(MessagesReply, "msg_", execution, ask))

    def embeddings(self, exchange: Exchange, execution: Execution) -> None:
        body = exchange.request.json()
        ask = read_embeddings(body, self.limits)
        dimensions = body.get("dimensions", DIMENSIONS)
        if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= 8192:
            raise Refusal(400, f"dimensions must be from 1 to 8192, got {dimensions}.", "dimensions")
        packed = body.get("encoding_format") == "base64"
        job = self._accept(exchange, execution, ask, None)
        if job is not None:
            job.on_done = lambda: self._embedded(job, dimensions, packed)

    def count_tokens(self, exchange: Exchange) -> None:
        self.json(exchange, {"input_tokens": message_tokens(exchange.request.json())})

    def health(self, exchange: Exchange) -> None:
        # Out of memory kills the engine of vLLM: from then on it says so here.
        exchange.answer(503 if self.node.faults.oom else 200, b"", "")

    def _reply(self, shape: type[Reply], prefix: str, execution: Execution, ask: Ask) -> Reply:
        choices = len(ask.generations)
        return shape(prefix + execution.id, ask.model, int(time.time()), ask.prompt_tokens, choices, ask.include_usage)

    def _accept(self, exchange: Exchange, execution: Execution, ask: Ask, reply: Reply | None) -> _Job | None:
        if self.node.faults.oom:
            self.card.refusal(KV_BYTES_PER_TOKEN)
            self.out_of_memory(exchange, execution, ENGINE_DEAD)
            return None
        limit = self.profile.queue_limit
        if limit is not None and self.batch.running + self.batch.waiting + len(ask.generations) > limit:
            self.rejections += 1
            raise Refusal(503, _BUSY)
        execution.model = ask.model
        execution.messages = ask.messages
        execution.tokens_in = ask.prompt_tokens
        alone = [self.times.alone(each.prompt_tokens, each.output_tokens) for each in ask.generations]
        execution.seconds = max(alone)
        execution.memory = KV_BYTES_PER_TOKEN * sum(each.prompt_tokens + each.output_tokens for each in ask.generations)
        job = _Job(exchange, execution, ask, reply)
        self._jobs[job] = None
        if self.cancels:
            execution.on_lost = lambda: self._abort(job)
        if ask.stream:
            self._streams += 1
            # As in vLLM, the head of a stream goes out before the first token is computed.
            exchange.start(200, "text/event-stream; charset=utf-8", self._headers(job))
            if exchange.closed:
                return None
        stall = self.node.draw_stall()
        if stall > 0:
            job.stall = self.node.clock.call_later(stall, self._submit, job)
        else:
            self._submit(job)
        return job

    def _headers(self, job: _Job) -> tuple[tuple[str, str], ...]:
        return (("x-emulated-messages", str(job.ask.messages)),) if job.ask.messages else ()

    def _submit(self, job: _Job) -> None:
        job.stall = None
        now = job.execution.started_at = self.node.clock.now()
        if self._busy_since is None:
            self._busy_since = now
        for index, each in enumerate(job.ask.generations):
            job.sequences.append(self.batch.add(now, (job, index), each.prompt_tokens, each.output_tokens))
        self._arm()

    def _abort(self, job: _Job) -> None:
        if job not in self._jobs:
            return
        now = self.node.clock.now()
        if job.stall is not None:
            job.stall.cancel()
        for sequence in job.sequences:
            self.batch.abort(now, sequence)
        self.reasons["abort"] += 1
        self._leave(job, now)
        self._arm()

    def _leave(self, job: _Job, now: float) -> None:
        del self._jobs[job]
        self._streams -= job.ask.stream
        job.execution.computed_at = now
        job.execution.tokens_out = sum(sequence.generated for sequence in job.sequences)
        if not self.batch.running and not self.batch.waiting and self._busy_since is not None:
            self._busy += now - self._busy_since
            self._busy_since = None

    # -- the engine at work --------------------------------------------------------------------------------------

    def _arm(self) -> None:
        due = self.batch.next_token() if self._streams else self.batch.next_finish()
        if due == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = None if due is None else self.node.clock.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        progressed = self.batch.advance(self.node.clock.now())
        for sequence, count in progressed.items():
            job, index = sequence.key
            self._progressed(job, index, sequence, count)
        self._arm()

    def _progressed(self, job: _Job, index: int, sequence: Sequence, count: int) -> None:
        if job not in self._jobs:
            return  # cut by a fault while earlier tokens were written
        asked = job.ask.generations[index]
        if sequence.first_token_at is not None and sequence.generated == count:
            self.prompt_tokens += asked.prompt_tokens
            self.first_token.observe(sequence.first_token_at - sequence.arrived)
        self.generation_tokens += count
        reply = job.reply
        if reply is not None:
            first = asked.offset + sequence.generated - count
            events = reply.tokens(index, [token(asked.print32, first + each) for each in range(count)])
            if sequence.finished_at is not None:
                events += reply.finish(index, asked.reason)
            if job.ask.stream:
                job.exchange.write(*events)
                if job not in self._jobs:
                    return
        if sequence.finished_at is not None:
            self.end_to_end.observe(sequence.finished_at - sequence.arrived)
            job.left -= 1
            if job.left == 0:
                self._done(job, sequence.finished_at)

    def _done(self, job: _Job, at: float) -> None:
        self._leave(job, at)
        self.reasons[job.ask.generations[-1].reason] += 1
        if job.on_done is not None:
            job.on_done()
        elif job.reply is not None and job.ask.stream:
            job.exchange.write(*job.reply.end())
            job.exchange.end()
        elif job.reply is not None:
            self.json(job.exchange, job.reply.body(), headers=self._headers(job))

    def _embedded(self, job: _Job, dimensions: int, packed: bool) -> None:
        data = []
        for index, each in enumerate(job.ask.generations):
            rng = random.Random(each.print32)
            vector = [rng.gauss(0, 1) for _ in range(dimensions)]
            norm = sum(value * value for value in vector) ** 0.5
            vector = [value / norm for value in vector]
            shown: Any = vector
            if packed:
                shown = base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
            data.append({"object": "embedding", "index": index, "embedding": shown})
        tokens = job.execution.tokens_in
        self.json(
            job.exchange,
            {
                "id": "embd-" + job.execution.id,
                "object": "list",
                "created": int(time.time()),
                "model": job.ask.model,
                "data": data,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
            },
        )

    # -- state ---------------------------------------------------------------------------------------------------

    def set_speed(self, speed: float) -> None:
        self.batch.set_speed(self.node.clock.now(), speed)
        self._arm()

    def clear(self) -> None:
        now = self.node.clock.now()
        for job in list(self._jobs):
            if job.stall is not None:
                job.stall.cancel()
        self.batch.clear()
        for job in list(self._jobs):
            self._leave(job, now)
        self.card.clear()
        self._arm()

    def busy_seconds(self) -> float:
        return self._busy + (0.0 if self._busy_since is None else self.node.clock.now() - self._busy_since)

    def load(self) -> dict[str, Any]:
        return {
            "running": self.batch.running,
            "waiting": self.batch.waiting,
            "kv_usage": self.batch.usage,
            "kv_tokens": self.batch.kv_tokens,
            "kv_peak": self.batch.peak_blocks / self.batch.blocks,
            "preemptions": self.batch.preemptions,
        }

    # -- shapes --------------------------------------------------------------------------------------------------

    def refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        status = refusal.status
        if exchange.request.path.startswith("/v1/messages"):
            kind = _ANTHROPIC_KINDS.get(status, "api_error")
            self.json(exchange, {"type": "error", "error": {"type": kind, "message": refusal.message}}, status)
            return
        if exchange.request.path not in self.work and status in (404, 405) and refusal.param is None:
            self.json(exchange, {"detail": refusal.message}, status)  # FastAPI, not vLLM, knows no such route
            return
        kind = _KINDS.get(status, "InternalServerError")
        error = {"message": refusal.message, "type": kind, "param": refusal.param, "code": status}
        self.json(exchange, {"error": error}, status)

    def model_card(self, model: str) -> dict[str, Any]:
        card = super().model_card(model)
        return {**card, "root": model, "parent": None, "max_model_len": self.limits.max_context, "permission": []}

    def metrics(self) -> bytes:
        labels = {"engine": "0", "model_name": self.models[0]}
        batch = self.batch
        page = Exposition()
        for name, text, value in (
            ("vllm:num_requests_running", "Number of requests in model execution batches.", batch.running),
            ("vllm:num_requests_waiting", "Number of requests waiting to be processed.", batch.waiting),
            ("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", batch.usage),
        ):
            page.family(name, "gauge", text)
            page.sample(name, labels, value)
        page.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
        info = {
            "block_size": str(batch.block_tokens),
            "cache_dtype": "auto",
            "enable_prefix_caching": "False",
            "engine": "0",
            "gpu_memory_utilization": str(MEMORY_SHARE),
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(batch.blocks),
            "sliding_window": "None",
        }
        page.sample("vllm:cache_config_info", info, 1)
        for name, text, value in (
            ("vllm:prompt_tokens_total", "Number of prefill tokens processed.", self.prompt_tokens),
            ("vllm:generation_tokens_total", "Number of generation tokens processed.", self.generation_tokens),
            ("vllm:num_preemptions_total", "Cumulative number of preemptions.", batch.preemptions),
        ):
            page.family(name, "counter", text)
            page.sample(name, labels, value)
        page.family("vllm:request_success_total", "counter", "Count of successfully processed requests.")
        for reason, count in self.reasons.items():
            page.sample("vllm:request_success_total", {**labels, "finished_reason": reason}, count)
        page.family("vllm:admission_rejections_total", "counter", "Requests refused because of a queue limit.")
        rejected = {"model_name": self.models[0], "reason": "max_num_queued_reqs"}
        page.sample("vllm:admission_rejections_total", rejected, self.rejections)
        page.histogram("vllm:time_to_first_token_seconds", "Time to first token in seconds.", labels, self.first_token)
        page.histogram("vllm:e2e_request_latency_seconds", "End to end latency in seconds.", labels, self.end_to_end)
        return page.text()
