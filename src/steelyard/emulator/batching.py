"""An LLM engine with continuous batching, iteration by iteration, as vLLM schedules. Pure: ``now`` is an argument.

First come first served; prompts are prefilled in chunks within a token budget that decoding sequences use first;
KV memory is in blocks; a sequence that cannot get its next block pre-empts the youngest one, which is computed again
from the front of the queue (vLLM's pre-emption by recomputation).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

BLOCK_TOKENS = 16  # vLLM's default block size
CHUNK_TOKENS = 2048  # vLLM's default token budget of one iteration
MAX_SEQUENCES = 256  # vLLM's default max_num_seqs


@dataclass(frozen=True)
class IterationTimes:
    """Seconds of one iteration. The defaults are Llama-3.1-8B in bf16 on an RTX 4090: a fit of the LLMServingSim
    profile of vLLM 0.19 (policy-science 3.2; MAPE 1.2 % for decoding, 8 % for prefill)."""

    decode_base: float = 16.96e-3
    decode_per_sequence: float = 0.0462e-3
    decode_per_token: float = 1.391e-7  # per token of context of the decoding sequences
    prefill_base: float = 9.15e-3
    prefill_per_token: float = 0.0782e-3
    prefill_attention: float = 4.15e-9  # per new token and token of context

    def seconds(self, sequences: int, context: int, prefill: int, attention: float) -> float:
        """One iteration with ``sequences`` decoding on ``context`` tokens of KV and ``prefill`` new prompt tokens.

        ``attention`` is the sum of n·(kv + n/2) over the prefill chunks. In a mixed iteration the weights are read
        once, so the larger of the two bases counts; the parts per sequence and per token add up.
        """
        total = 0.0
        if prefill:
            total = self.prefill_base + self.prefill_per_token * prefill + self.prefill_attention * attention
        if sequences:
            total = max(total, self.decode_base)
            total += self.decode_per_sequence * sequences + self.decode_per_token * context
        return total

    def alone(self, prompt: int, output: int) -> float:
        """Seconds of one request on an idle engine: the whole prompt at once, then a token an iteration."""
        decodes = max(0, output - 1)
        context = decodes * prompt + decodes * (decodes + 1) // 2
        fixed = self.decode_base + self.decode_per_sequence
        return self.seconds(0, 0, prompt, prompt * prompt / 2) + decodes * fixed + self.decode_per_token * context


class Sequence:
    """One sequence in the engine: ``prompt`` tokens in, ``output`` tokens to make (0: only the prefill)."""

    __slots__ = (
        "arrived",
        "blocks",
        "finished_at",
        "first_token_at",
        "generated",
        "key",
        "output",
        "prefilled",
        "prompt",
    )

    def __init__(self, key: Any, prompt: int, output: int, arrived: float) -> None:
        self.key = key
        self.prompt = prompt
        self.output = output
        self.arrived = arrived
        self.generated = 0
        self.prefilled = 0
        self.blocks = 0
        self.first_token_at: float | None = None
        self.finished_at: float | None = None

    @property
    def context(self) -> int:
        """Tokens whose KV the sequence needs."""
        return self.prompt + self.generated

    @property
    def decoding(self) -> bool:
        """Only the KV of its last token is missing: one iteration computes it and makes the next token."""
        return self.generated > 0 and self.prefilled == self.context - 1


class ContinuousBatch:
    """The scheduler and the KV cache of one engine."""

    def __init__(
        self,
        kv_tokens: int,
        *,
        times: IterationTimes | None = None,
        speed: float = 1.0,
        max_sequences: int = MAX_SEQUENCES,
        chunk_tokens: int = CHUNK_TOKENS,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self.blocks = kv_tokens // block_tokens
        if self.blocks < 1:
            raise ValueError(f"a KV cache of {kv_tokens} tokens holds no block of {block_tokens} tokens")
        self.block_tokens = block_tokens
        self.preemptions = 0
        self.peak_blocks = 0
        self.used_blocks = 0
        self._times = times or IterationTimes()
        self._speed = speed
        self._max_sequences = max_sequences
        self._chunk = chunk_tokens
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._time = 0.0
        self._end: float | None = None  # of the iteration under way
        self._repeat = 1  # identical decode iterations that may follow each other without planning again
        self._prefills: list[tuple[Sequence, int]] = []
        self._decoders: list[Sequence] = []
        self._progressed: dict[Sequence, int] = {}

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def usage(self) -> float:
        """Share of the KV blocks in use, 0..1."""
        return self.used_blocks / self.blocks

    @property
    def kv_tokens(self) -> int:
        return self.blocks * self.block_tokens

    def add(self, now: float, key: Any, prompt: int, output: int) -> Sequence:
        """A sequence joins the queue; ValueError when it could never fit the cache."""
        if prompt < 1 or output < 0:
            raise ValueError(f"a sequence needs at least one prompt token, not {prompt} in and {output} out")
        if prompt + output > self.kv_tokens:
            raise ValueError(f"{prompt + output} tokens never fit a KV cache of {self.kv_tokens} tokens")
        self._progress(now)
        sequence = Sequence(key, prompt, output, now)
        self._waiting.append(sequence)
        self._repeat = 1
        return sequence

    def abort(self, now: float, sequence: Sequence) -> bool:
        """The client has gone: the sequence leaves and its blocks are free; False when it had ended."""
        self._progress(now)
        if sequence.finished_at is not None:
            return False
        if sequence in self._running:
            self._running.remove(sequence)
            self._free(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        else:
            return False
        self._progressed.pop(sequence, None)
        # The iteration under way ends when it would have ended, but makes nothing for this sequence.
        self._prefills = [(other, count) for other, count in self._prefills if other is not sequence]
        self._decoders = [other for other in self._decoders if other is not sequence]
        self._repeat = 1
        if not self._running and not self._waiting:
            self._end = None
        return True

    def set_speed(self, now: float, speed: float) -> None:
        """From the next iteration on the card works at ``speed`` times its normal speed."""
        if not speed > 0:
            raise ValueError(f"speed must be above 0, not {speed}")
        self._progress(now)
        self._speed = speed
        self._repeat = 1

    def clear(self) -> None:
        """The process died: nothing runs, waits or holds KV."""
        self._waiting.clear()
        self._running.clear()
        self._progressed.clear()
        self._prefills, self._decoders = [], []
        self._end = None
        self.used_blocks = 0

    def next_token(self) -> float | None:
        """When the iteration under way ends; None when idle."""
        if self._end is None and (self._running or self._waiting):
            self._plan()
        return self._end

    def next_finish(self) -> float | None:
        """No sequence ends before this time, if nothing arrives; None when idle. (Iterations only get longer.)"""
        end = self.next_token()
        if end is None or self._repeat == 1:
            return end
        return end + (self._repeat - 1) * (end - self._time)

    def advance(self, now: float) -> dict[Sequence, int]:
        """The sequences that progressed since the last call and how many tokens each made (0: prefill only, ended)."""
        self._progress(now)
        progressed, self._progressed = self._progressed, {}
        return progressed

    def _progress(self, now: float) -> None:
        while self._running or self._waiting:
            if self._end is None:
                self._plan()
            if self._end is None or self._end > now:
                return
            self._commit(now)
        self._time = max(self._time, now)

    def _plan(self) -> None:
        """Decide what the iteration that starts at ``_time`` computes."""
        self._decoders = [sequence for sequence in self._running if sequence.decoding]
        preempted = self._grow_decoders()
        budget = self._chunk - len(self._decoders)
        self._prefills = []
        attention = 0.0
        prefill = 0
        for sequence in self._running:
            if budget > 0 and not sequence.decoding:
                attention += self._prefill(sequence, min(budget, sequence.context - sequence.prefilled))
                budget -= self._prefills[-1][1]
                prefill += self._prefills[-1][1]
        while self._waiting and not preempted and budget > 0 and len(self._running) < self._max_sequences:
            sequence = self._waiting[0]
            need = self._blocks_for(sequence.context)
            if need > self.blocks - self.used_blocks:
                break  # first come, first served: nothing overtakes the head
            self._waiting.popleft()
            self._take(sequence, need)
            self._running.append(sequence)
            attention += self._prefill(sequence, min(budget, sequence.context))
            budget -= self._prefills[-1][1]
            prefill += self._prefills[-1][1]
        context = sum(sequence.context for sequence in self._decoders)
        self._end = self._time + self._seconds(len(self._decoders), context, prefill, attention)
        self._repeat = 1 if self._prefills or not self._decoders else self._safe_repeats()

    def _prefill(self, sequence: Sequence, count: int) -> float:
        self._prefills.append((sequence, count))
        return count * (sequence.prefilled + count / 2)

    def _grow_decoders(self) -> bool:
        """Each decoding sequence needs room for its last token; the youngest give way (True) when there is none."""
        before = self.preemptions
        for sequence in list(self._decoders):
            if sequence.blocks == 0:
                continue  # pre-empted a moment ago
            while self._blocks_for(sequence.context) > sequence.blocks:
                if self.used_blocks < self.blocks:
                    self._take(sequence, 1)
                    continue
                victim = self._running.pop()
                self._free(victim)
                victim.prefilled = 0
                self._waiting.appendleft(victim)
                self.preemptions += 1
                if victim is sequence:
                    break
        self._decoders = [sequence for sequence in self._decoders if sequence.blocks]
        return self.preemptions > before

    def _safe_repeats(self) -> int:
        """Decode iterations up to the first end of a sequence, as far as free blocks certainly last."""
        repeats = min(sequence.output - sequence.generated for sequence in self._decoders)
        share = (self.blocks - self.used_blocks) // len(self._decoders)
        if share > repeats // self.block_tokens:
            return repeats
        return max(1, (share - 1) * self.block_tokens)

    def _seconds(self, sequences: int, context: int, prefill: int = 0, attention: float = 0.0) -> float:
        return self._times.seconds(sequences, context, prefill, attention) / self._speed

    def _commit(self, now: float) -> None:
        """The iteration under way has ended, and so may have identical ones after it."""
        assert self._end is not None
        end = self._end
        count = 1
        if self._repeat > 1:
            sequences = len(self._decoders)
            context = sum(sequence.context for sequence in self._decoders)
            while count < self._repeat:
                context += sequences
                following = end + self._seconds(sequences, context)
                if following > now:
                    break
                end = following
                count += 1
        self._time = end
        for sequence, tokens in self._prefills:
            sequence.prefilled += tokens
            if sequence.prefilled >= sequence.context:
                self._made(sequence, 1, end)
        for sequence in self._decoders:
            if count > 1:
                self._take(sequence, self._blocks_for(sequence.context + count - 1) - sequence.blocks)
            sequence.prefilled += count
            self._made(sequence, count, end)
        if count < self._repeat:
            self._repeat -= count
            for sequence in self._decoders:
                self._take(sequence, self._blocks_for(sequence.context) - sequence.blocks)
            context = sum(sequence.context for sequence in self._decoders)
            self._end = end + self._seconds(len(self._decoders), context)
        else:
            self._end = None

    def _made(self, sequence: Sequence, count: int, at: float) -> None:
        if sequence.first_token_at is None:
            sequence.first_token_at = at
        count = min(count, sequence.output - sequence.generated)
        sequence.generated += count
        self._progressed[sequence] = self._progressed.get(sequence, 0) + count
        if sequence.generated >= sequence.output:
            sequence.finished_at = at
            self._running.remove(sequence)
            self._free(sequence)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _take(self, sequence: Sequence, blocks: int) -> None:
        sequence.blocks += blocks
        self.used_blocks += blocks
        self.peak_blocks = max(self.peak_blocks, self.used_blocks)

    def _free(self, sequence: Sequence) -> None:
        self.used_blocks -= sequence.blocks
        sequence.blocks = 0
