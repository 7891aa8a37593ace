"""The A1111 dialect, memory that runs out, and shared compute, over sockets."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import zlib
from typing import Any

import httpx
import pytest

from steelyard.emulator import EmulatedNode, ImageTables, NodeProfile
from steelyard.emulator.compute import SharedProcessor
from tests.emulator.scenes import Raw, one_node, until

SMALL = {"prompt": "a balance", "width": 512, "height": 512}
LARGE = {"prompt": "a balance", "width": 1024, "height": 1024}


def decode_png(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG whose chunks, checksums and pixel data are all right."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    offset, kinds, pixels, header = 8, [], b"", b""
    while offset < len(data):
        (size,) = struct.unpack_from(">I", data, offset)
        kind, body = data[offset + 4 : offset + 8], data[offset + 8 : offset + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack_from(">I", data, offset + 8 + size)[0]
        kinds.append(kind)
        pixels += body if kind == b"IDAT" else b""
        header = body if kind == b"IHDR" else header
        offset += 12 + size
    assert kinds[0] == b"IHDR"
    assert kinds[-1] == b"IEND"
    width, height, depth = struct.unpack_from(">IIB", header)
    assert len(zlib.decompress(pixels)) == height * (1 + -(-width * depth // 8))
    return width, height


def seconds(node: EmulatedNode, index: int) -> float:
    execution = node.stats.log[index]
    assert execution.computed_at is not None
    assert execution.started_at is not None
    return execution.computed_at - execution.started_at


def test_the_tables_give_the_numbers_of_the_article() -> None:
    tables = ImageTables()
    assert tables.job_memory(512 * 512) == 8_000_000_000
    assert tables.job_memory(1024 * 1024) == 18_000_000_000
    assert tables.job_memory(768 * 768) == pytest.approx(12_166_666_667, abs=1)  # on the line between
    assert tables.job_memory(2048 * 1024) == pytest.approx(31_333_333_333, abs=1)  # on the line beyond
    assert tables.job_seconds(512 * 512, 50) == pytest.approx(2.0)
    assert tables.job_seconds(1024 * 1024, 50) == pytest.approx(8.0)
    assert tables.job_seconds(512 * 512, 25) == pytest.approx(0.15 + 1.85 / 2)
    assert tables.job_seconds(512 * 512, 50, images=4) == pytest.approx(0.15 + 1.85 * 4**0.91)


def test_the_memory_table_can_have_one_or_many_points() -> None:
    assert ImageTables(memory=((100, 1000),)).job_memory(50) == 500
    three = ImageTables(memory=((300, 900), (100, 100), (200, 200)))
    assert [three.job_memory(pixels) for pixels in (100, 150, 200, 250, 400)] == [100, 150, 200, 550, 1600]


def test_txt2img_answers_real_pictures(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile()) as (node, client):
            answer = await client.post("/sdapi/v1/txt2img", json={**SMALL, "batch_size": 2, "seed": 7})
            assert answer.status_code == 200
            assert answer.headers["x-emulated-node"] == "gpu-1"
            assert answer.headers["x-emulated-execution"] == "gpu-1-000001"
            body = answer.json()
            assert [decode_png(base64.b64decode(image)) for image in body["images"]] == [(512, 512)] * 2
            assert body["parameters"]["batch_size"] == 2
            info = json.loads(body["info"])
            assert (info["seed"], info["all_seeds"], info["sd_model_name"]) == (7, [7, 8], "sd-1.5")
            done = node.stats.log[0]
            assert done.memory == ImageTables().job_memory(2 * 512 * 512)
            assert done.seconds == pytest.approx(0.15 + 1.85 * 2**0.91)
            assert (done.outcome, done.status) == ("finished", 200)
            assert seconds(node, 0) == pytest.approx(done.seconds)
            assert node.engine.card.allocated == 0
            assert node.engine.card.peak == done.memory

    run(scene())


def test_img2img_and_its_missing_image(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile()) as (_, client):
            answer = await client.post("/sdapi/v1/img2img", json={**SMALL, "init_images": ["aGk="]})
            assert answer.status_code == 200
            assert "init_images" not in answer.json()["parameters"]
            assert (await client.post("/sdapi/v1/img2img", json=SMALL)).status_code == 404

    run(scene())


def test_the_over_committed_card_fails_with_the_error_of_the_engine(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(), time_scale=0.1) as (node, client):
            small = [asyncio.ensure_future(client.post("/sdapi/v1/txt2img", json=SMALL)) for _ in range(2)]
            await until(lambda: node.engine.card.allocated == 16_000_000_000, "both small jobs run")
            answer = await client.post("/sdapi/v1/txt2img", json=LARGE)
            body = answer.json()
            assert answer.status_code == 500
            assert set(body) == {"error", "detail", "body", "errors"}
            assert (body["error"], body["detail"], body["body"]) == ("OutOfMemoryError", "", "")
            assert body["errors"].startswith("CUDA out of memory. Tried to allocate 16.76 GiB.")
            assert seconds(node, 2) < 4.0  # it fails soon, long before the 8 s it would have taken
            assert [each.result().status_code for each in await asyncio.wait_for(_all(small), 10)] == [200, 200]
            assert (node.stats.oom, node.stats.finished, node.engine.card.allocated) == (1, 2, 0)
            memory = (await client.get("/sdapi/v1/memory")).json()["cuda"]
            assert memory["events"]["oom"] == 1

    async def _all(tasks: list[asyncio.Future[httpx.Response]]) -> list[asyncio.Future[httpx.Response]]:
        await asyncio.wait(tasks)
        return tasks

    run_on_both(scene())


def test_two_jobs_on_one_card_slow_each_other(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(), time_scale=0.1) as (node, client):
            await asyncio.gather(*[client.post("/sdapi/v1/txt2img", json=SMALL) for _ in range(2)])
            card = SharedProcessor()
            for execution in node.stats.log:
                assert execution.started_at is not None
                card.add(execution.started_at, execution, 2.0)
            for at, execution in card.advance(1e6):
                assert execution.computed_at == pytest.approx(at)  # type: ignore[attr-defined]
            assert seconds(node, 0) > 2.0
            assert seconds(node, 1) > 2.0
            assert node.engine.busy_seconds() == pytest.approx(card.busy_seconds(1e6))

    run(scene())


def test_with_a_concurrency_of_one_they_queue_instead(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(concurrency=1), time_scale=0.05) as (node, client):
            jobs = [asyncio.ensure_future(client.post("/sdapi/v1/txt2img", json=LARGE)) for _ in range(3)]
            await until(lambda: node.engine.load() == {"running": 1, "waiting": 2}, "two wait")
            pending = (await client.get("/internal/pending-tasks")).json()
            assert pending["size"] == 2
            assert pending["tasks"][0].startswith("task(txt2img-gpu-1-")
            await asyncio.sleep(0.1)
            progress = (await client.get("/sdapi/v1/progress?skip_current_image=true")).json()
            assert 0 < progress["progress"] < 1
            assert progress["eta_relative"] < 8
            assert progress["state"]["job_count"] == 1
            assert [(await job).status_code for job in jobs] == [200] * 3
            starts = [each.started_at for each in node.stats.log]
            assert starts == sorted(starts)
            assert node.engine.card.peak == 18_000_000_000
            assert (await client.get("/sdapi/v1/progress")).json()["state"]["job_count"] == 0

    run(scene())


def test_a_client_that_leaves_is_noticed_at_once_but_the_card_goes_on(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(), time_scale=0.1) as (node, client):
            raw = await Raw.open(node)
            raw.post("/sdapi/v1/txt2img", json.dumps(LARGE).encode(), "x-request-id: left-1")
            await until(lambda: node.engine.card.allocated == 18_000_000_000, "the job runs")
            raw.close()
            await until(lambda: node.stats.aborted == 1, "the abort is recorded")
            left = node.stats.log[0]
            assert (left.request_id, left.outcome, left.computed_at) == ("left-1", "aborted", None)
            assert node.engine.card.allocated == 18_000_000_000
            await until(lambda: node.engine.card.allocated == 0, "the job is done")
            assert seconds(node, 0) == pytest.approx(8.0)
            assert left.outcome == "aborted"
            assert (await client.get("/internal/ping")).json() == {}

    run_on_both(scene())


def test_where_the_engine_cancels_the_job_leaves_with_its_client_whatever_it_was_doing(run: Any) -> None:
    async def scene() -> None:
        profile = NodeProfile(cancels_on_disconnect=True, concurrency=3, oom_seconds=100.0)
        async with one_node(profile, time_scale=1.0) as (node, _):
            raws = []
            for body in (SMALL, LARGE, SMALL, SMALL):  # computing, failing, computing, queued
                raw = await Raw.open(node)
                raws.append(raw)
                raw.post("/sdapi/v1/txt2img", json.dumps({**body, "steps": 5000}).encode())
                await until(lambda: node.stats.started == len(raws), "it arrived")
            assert node.engine.load() == {"running": 3, "waiting": 1}
            assert node.engine.card.allocated == 16_000_000_000
            for raw in reversed(raws):
                raw.close()
            await until(lambda: node.stats.aborted == 4, "every abort is seen")
            assert node.engine.load() == {"running": 0, "waiting": 0}
            assert node.engine.card.allocated == 0

    run(scene())


def test_a_crash_loses_running_stalled_failing_and_queued_jobs(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(concurrency=3, oom_seconds=1.0), time_scale=0.2) as (node, client):
            raws = []
            for body, stall in ((SMALL, None), (LARGE, None), (SMALL, {"seconds": 1}), (SMALL, None)):
                assert (await client.post("/_emulator/faults", json={"stall": stall})).status_code == 200
                raw = await Raw.open(node)
                raws.append(raw)
                raw.post("/sdapi/v1/txt2img", json.dumps({**body, "steps": 5000}).encode())
                await until(lambda: node.stats.started == len(raws), "it arrived")
            assert (await client.post("/_emulator/faults", json={"crash": True})).status_code == 200
            for raw in raws:
                with pytest.raises(ConnectionResetError):
                    await raw.rest()
            assert node.engine.load() == {"running": 0, "waiting": 0}
            assert node.engine.card.allocated == 0
            node.recover()
            await until(lambda: node.listening, "it is back")
            assert (await client.post("/sdapi/v1/txt2img", json=LARGE)).status_code == 200  # 1.6 s: no timer is left
            assert (node.stats.failed, node.stats.oom, node.stats.finished, node.stats.open) == (4, 0, 1, 0)

    run(scene())


def test_telemetry_tells_allocated_and_reserved_bytes_apart(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile()) as (_, client):
            await client.post("/sdapi/v1/txt2img", json=LARGE)
            cuda = (await client.get("/sdapi/v1/memory")).json()["cuda"]
            assert cuda["allocated"] == {"current": 0, "peak": 18_000_000_000}
            assert cuda["system"] == {"free": 6_000_000_000, "used": 18_000_000_000, "total": 24_000_000_000}

    run(scene())


def test_settings_models_and_the_switch_of_a_checkpoint(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(models=("sd-1.5", "sdxl"))) as (node, client):
            names = [model["model_name"] for model in (await client.get("/sdapi/v1/sd-models")).json()]
            assert names == ["sd-1.5", "sdxl"]
            override = {"override_settings": {"sd_model_checkpoint": "sdxl"}}
            assert (await client.post("/sdapi/v1/txt2img", json={**SMALL, **override})).status_code == 200
            assert node.stats.log[0].seconds == pytest.approx(2.0 + 4.0)
            assert (await client.get("/sdapi/v1/options")).json()["sd_model_checkpoint"] == "sdxl"
            assert (await client.post("/sdapi/v1/options", json={"sd_model_checkpoint": "sd-1.5"})).status_code == 200
            assert (await client.get("/sdapi/v1/options")).json()["sd_model_checkpoint"] == "sd-1.5"
            wrong = await client.post("/sdapi/v1/options", json={"sd_model_checkpoint": "nope"})
            assert (wrong.status_code, "nope" in wrong.json()["errors"]) == (500, True)

    run(scene())


@pytest.mark.parametrize(
    ("extra", "memory_pixels", "work"),
    [
        ({"n_iter": 3}, 512 * 512, 6.0),
        ({"sampler_name": "Heun"}, 512 * 512, 0.15 + 3.7),
        ({"cfg_scale": 1}, 512 * 512, 0.15 + 0.925),
        ({"enable_hr": True, "hr_scale": 2}, 1024 * 1024, 10.0),
    ],
)
def test_the_fields_that_make_a_job_heavier(run: Any, extra: Any, memory_pixels: int, work: float) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(), time_scale=0.005) as (node, client):
            assert (await client.post("/sdapi/v1/txt2img", json={**SMALL, **extra})).status_code == 200
            assert node.stats.log[0].seconds == pytest.approx(work)
            assert node.stats.log[0].memory == ImageTables().job_memory(memory_pixels)

    run(scene())


def test_openai_images(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile()) as (node, client):
            ask = {"prompt": "a balance", "n": 2, "size": "256x512", "model": "sd-1.5"}
            body = (await client.post("/v1/images/generations", json=ask)).json()
            assert [decode_png(base64.b64decode(each["b64_json"])) for each in body["data"]] == [(256, 512)] * 2
            assert node.stats.log[0].memory == ImageTables().job_memory(2 * 256 * 512)
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "sd-1.5"
            many = await client.post("/v1/images/generations", json={"prompt": "x", "n": 2, "size": "1024x1024"})
            assert many.status_code == 500
            assert many.json()["error"]["message"].startswith("CUDA out of memory")
            assert node.stats.oom == 1

    run(scene())


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/sdapi/v1/txt2img", b'{"width": "wide"}', 422, "width must be a whole number"),
        ("/sdapi/v1/txt2img", b'{"steps": 0}', 422, "steps must be a whole number of at least 1"),
        ("/sdapi/v1/txt2img", b"[]", 422, "must be a JSON object"),
        ("/sdapi/v1/txt2img", b'{"width": ', 422, "not valid JSON"),
        ("/v1/images/generations", b"{}", 400, "prompt: Field required"),
        ("/v1/images/generations", b'{"prompt": "x", "size": "big"}', 400, "size must be WIDTHxHEIGHT"),
        ("/v1/images/generations", b'{"prompt": "x", "n": 11}', 400, "n must be from 1 to 10"),
        ("/v1/images/generations", b'{"prompt": "x", "model": "flux"}', 404, "`flux` does not exist"),
    ],
)
def test_bad_requests(run: Any, path: str, body: bytes, status: int, says: str) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile()) as (node, client):
            answer = await client.post(path, content=body)
            assert answer.status_code == status
            assert says in answer.text
            assert (node.stats.failed, node.engine.load()["running"]) == (1, 0)

    run(scene())
