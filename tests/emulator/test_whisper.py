"""The OpenAI audio dialect over sockets."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from steelyard.emulator import EmulatorError, NodeProfile
from steelyard.emulator.audio import audio_seconds
from steelyard.emulator.multipart import BadForm, Part, read_form
from tests.emulator.scenes import one_node

WHISPER = NodeProfile(kind="whisper")


def wav(seconds: float, rate: int = 8000, *, data_size: int | None = None, extra: bytes = b"") -> bytes:
    samples = bytes(round(seconds * rate) * 2)
    size = len(samples) if data_size is None else data_size
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16)
    data = b"WAVE" + form + extra + struct.pack("<4sI", b"data", size) + samples
    return b"RIFF" + struct.pack("<I", len(data)) + data


@pytest.mark.parametrize(
    ("recording", "seconds"),
    [
        (wav(12.0), 12.0),
        (wav(12.0, extra=b"LIST\x03\x00\x00\x00abc\x00"), 12.0),  # an odd chunk is padded
        (wav(3.0, data_size=0), 3.0),  # recorders that stream do not know the length
        (wav(3.0, data_size=0xFFFFFFFF), 3.0),
        (b"ID3" + bytes(63_997), 2.0),  # not a WAV: bytes / 32,000
        (b"RIFF\x00\x00\x00\x00WAVE", 12 / 32_000),
    ],
)
def test_the_length_of_a_recording(recording: bytes, seconds: float) -> None:
    assert audio_seconds(recording) == pytest.approx(seconds)


def test_the_time_is_overhead_plus_audio_over_speed_and_memory_a_window_a_request(run: Any) -> None:
    async def scene() -> None:
        async with one_node(WHISPER) as (node, client):
            files = {"file": ("a.wav", wav(62.0), "audio/wav")}
            data = {"model": "whisper-large-v3"}
            answer = await client.post("/v1/audio/transcriptions", data=data, files=files)
            body = answer.json()
            assert body["usage"] == {"type": "duration", "seconds": 62}
            assert len(body["text"].split()) == 155
            done = node.stats.log[0]
            assert done.seconds == pytest.approx(0.3 + 62 / 12.4)
            assert (done.computed_at or 0) - (done.started_at or 0) == pytest.approx(5.3)
            assert (node.engine.card.resident, node.engine.card.peak) == (10_000_000_000, 10_220_000_000)

    run(scene())


def test_the_formats(run: Any) -> None:
    async def scene() -> None:
        async with one_node(WHISPER) as (_, client):

            async def ask(shape: str) -> Any:
                files = {"file": ("a.wav", wav(31.0), "audio/wav")}
                data = {"model": "whisper-large-v3", "response_format": shape, "language": "de"}
                return await client.post("/v1/audio/transcriptions", data=data, files=files)

            verbose = (await ask("verbose_json")).json()
            assert (verbose["duration"], verbose["language"]) == (31.0, "de")
            assert [(part["start"], part["end"]) for part in verbose["segments"]] == [(0.0, 30.0), (30.0, 31.0)]
            assert verbose["text"] == " ".join(part["text"] for part in verbose["segments"])
            text = await ask("text")
            assert (text.headers["content-type"], text.text) == ("text/plain; charset=utf-8", verbose["text"] + "\n")
            assert "2\n00:00:30,000 --> 00:00:31,000\n" in (await ask("srt")).text
            assert (await ask("vtt")).text.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:30.000\n")

    run(scene())


def test_many_at_once_run_out_of_memory(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind="whisper", gpu_memory=10_500_000_000), time_scale=0.1) as (node, client):

            async def ask() -> int:
                files = {"file": ("a.wav", wav(60.0), "audio/wav")}
                data = {"model": "whisper-large-v3"}
                return (await client.post("/v1/audio/transcriptions", data=data, files=files)).status_code

            codes = await asyncio.gather(*[ask() for _ in range(3)])
            assert sorted(codes) == [200, 200, 500]
            assert node.stats.oom == 1

    run(scene())


def test_translations_models_health_and_the_official_client(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind="whisper", models=("whisper-tiny",))) as (node, client):
            openai = AsyncOpenAI(base_url=node.url + "/v1", api_key="none", max_retries=0)
            spoken = await openai.audio.translations.create(model="whisper-tiny", file=("a.wav", wav(4.0)))
            assert len(spoken.text.split()) == 10
            await openai.close()
            assert node.engine.card.resident == 1_000_000_000
            assert (await client.get("/health")).json() == {"message": "OK"}
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "whisper-tiny"

    run(scene())


def test_a_card_that_is_too_small_for_the_model_is_refused(run: Any) -> None:
    async def scene() -> None:
        with pytest.raises(EmulatorError, match="do not fit"):
            async with one_node(NodeProfile(kind="whisper", gpu_memory=8_000_000_000)):
                pass

    run(scene())


@pytest.mark.parametrize(
    ("data", "files", "status", "says"),
    [
        ({"model": "whisper-large-v3"}, {}, 400, "multipart/form-data"),
        ({}, {"file": ("a.wav", b"x")}, 422, "model: Field required"),
        ({"model": "x"}, {"file": ("a.wav", b"x")}, 404, "`x` does not exist"),
        ({"model": "whisper-large-v3"}, {"other": ("a.wav", b"x")}, 422, "file: Field required"),
        ({"model": "whisper-large-v3", "response_format": "pdf"}, {"file": ("a.wav", b"x")}, 400, "response_format"),
        ({"model": "whisper-large-v3", "stream": "true"}, {"file": ("a.wav", b"x")}, 400, "not supported"),
    ],
)
def test_bad_requests(run: Any, data: Any, files: Any, status: int, says: str) -> None:
    async def scene() -> None:
        async with one_node(WHISPER) as (node, client):
            answer = await client.post("/v1/audio/transcriptions", data=data, files=files)
            assert answer.status_code == status
            assert says in answer.json()["error"]["message"]
            assert node.stats.failed == 1

    run(scene())


@given(st.dictionaries(st.text("abc", min_size=1), st.binary(max_size=50), max_size=4))
def test_forms_round_trip(fields: dict[str, bytes]) -> None:
    body = b""
    for name, value in fields.items():
        body += b'--XYZ\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)
    form = read_form('multipart/form-data; boundary="XYZ"', body + b"--XYZ--\r\n")
    assert form == {name: Part(value) for name, value in fields.items()}


@pytest.mark.parametrize(
    ("content_type", "body", "says"),
    [
        ("application/json", b"{}", "must be multipart/form-data"),
        ("multipart/form-data", b"", "names no boundary"),
        ("multipart/form-data; boundary=x", b"--x\r\nrubbish", "closing boundary"),
        ("multipart/form-data; boundary=x", b"--x\r\nrubbish\r\n--x--", "no blank line"),
        ("multipart/form-data; boundary=x", b"--x\r\nA: b\r\n\r\nc\r\n--x--", "has no name"),
    ],
)
def test_bad_forms(content_type: str, body: bytes, says: str) -> None:
    with pytest.raises(BadForm, match=says):
        read_form(content_type, body)
