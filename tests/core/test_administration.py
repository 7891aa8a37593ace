"""Which requests rule a server, and which ask it for work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.core.administration import ALWAYS, DELETING, INFERENCE, WRITING, climbs, is_administration, path_refusal

REFUSED = [
    # vLLM
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/reset_mm_cache"),
    ("POST", "/collective_rpc"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/abort_requests"),
    ("POST", "/scale_elastic_ep"),
    ("POST", "/fault_tolerance/apply"),
    ("POST", "/update_weights"),
    # SGLang
    ("GET", "/flush_cache"),
    ("POST", "/flush_cache"),
    ("POST", "/start_profile"),
    ("POST", "/update_weights_from_disk"),
    ("GET", "/release_memory_occupation"),
    ("POST", "/load_lora_adapter"),
    ("PUT", "/set_internal_state"),
    ("POST", "/abort_request"),
    # LMDeploy, TensorRT-LLM
    ("POST", "/wakeup"),
    ("GET", "/terminate"),
    ("POST", "/nodes/add"),
    ("POST", "/release_memory"),
    # Triton
    ("POST", "/v2/repository/models/resnet/load"),
    ("POST", "/v2/repository/models/resnet/unload"),
    ("POST", "/v2/repository/mine/models/resnet/unload"),
    ("POST", "/v2/systemsharedmemory/region/r/register"),
    ("POST", "/v2/cudasharedmemory/unregister"),
    ("POST", "/v2/trace/setting"),
    ("POST", "/v2/models/m/trace/setting"),
    ("POST", "/v2/models/m/versions/1/trace/setting"),
    ("POST", "/v2/logging"),
    # llama.cpp, TorchServe
    ("POST", "/slots/0?action=erase"),
    ("POST", "/models/load"),
    ("POST", "/models"),
    ("DELETE", "/models?model=m"),
    ("POST", "/lora-adapters"),
    ("POST", "/props"),
    ("PUT", "/models/m/2.0/set-default"),
    ("DELETE", "/models/m"),
    ("DELETE", "/v1/models/organisation/m"),
    # Ollama
    ("DELETE", "/api/delete"),
    ("POST", "/api/pull"),
    ("POST", "/api/push"),
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("POST", "/api/blobs/sha256:0123"),
    # The web UI of Stable Diffusion
    ("POST", "/sdapi/v1/server-kill"),
    ("POST", "/sdapi/v1/server-restart"),
    ("POST", "/sdapi/v1/server-stop"),
    ("POST", "/sdapi/v1/options"),
    ("POST", "/sdapi/v1/unload-checkpoint"),
    ("POST", "/sdapi/v1/reload-checkpoint"),
    ("POST", "/sdapi/v1/refresh-checkpoints"),
    ("POST", "/sdapi/v1/interrupt"),
    ("POST", "/sdapi/v1/skip"),
    # ComfyUI
    ("POST", "/queue"),
    ("POST", "/interrupt"),
    ("POST", "/api/interrupt"),
    ("POST", "/free"),
    ("POST", "/history"),
    ("GET", "/manager/reboot"),
    # The emulator
    ("GET", "/_emulator/stats"),
    ("POST", "/_emulator/faults"),
]

RELAYED = [
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/organisation/m"),
    ("POST", "/v1/models/resnet:predict"),
    ("POST", "/v1/files"),
    ("DELETE", "/v1/responses/r1"),
    ("POST", "/generate"),
    ("GET", "/is_sleeping"),
    ("GET", "/fault_tolerance/status"),
    ("POST", "/v2/models/load/infer"),
    ("POST", "/v2/models/m/generate"),
    ("POST", "/v2/repository/index"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("GET", "/v2/trace/setting"),
    ("GET", "/slots"),
    ("HEAD", "/props"),
    ("GET", "/lora-adapters"),
    ("GET", "/models"),
    ("POST", "/predictions/m"),
    ("POST", "/api/chat"),
    ("POST", "/api/show"),
    ("GET", "/sdapi/v1/options"),
    ("GET", "/sdapi/v1/progress"),
    ("POST", "/sdapi/v1/txt2img"),
    ("POST", "/sdapi/v1/interrogate"),
    ("POST", "/prompt"),
    ("GET", "/queue"),
    ("GET", "/history/0f1e"),
    ("POST", "/sleepy"),
    ("POST", "/mine/sleep"),
    ("POST", "/x?path=/sleep"),
    ("POST", "/"),
    ("POST", ""),
    ("OPTIONS", "*"),
]


@pytest.mark.parametrize(("method", "path"), REFUSED)
def test_what_rules_a_server_is_administration(method: str, path: str) -> None:
    assert is_administration(method, path)


@pytest.mark.parametrize(("method", "path"), RELAYED)
def test_work_and_questions_are_not(method: str, path: str) -> None:
    assert not is_administration(method, path)


WAYS_TO_WRITE_IT = [
    "/sleep",
    "/sleep?level=1",
    "/sleep/",
    "//sleep",
    "/sleep//",
    "/./sleep",
    "/v1/../sleep",
    "/v1/%2e%2e/sleep",
    "/%73leep",
    "%2Fsleep",
    "/sleep%2F",
    "/SLEEP",
    "http://node:8000/sleep",
    "HTTP://node//sleep?level=2",
]


@pytest.mark.parametrize("path", WAYS_TO_WRITE_IT)
def test_however_it_is_written(path: str) -> None:
    assert is_administration("POST", path)


@pytest.mark.parametrize("method", ["post", "PATCH", "MADE-UP"])
def test_a_method_that_nobody_knows_is_one_that_writes(method: str) -> None:
    assert is_administration(method, "/props")
    assert not is_administration("get", "/props")


@given(st.sampled_from(["/sleep", "/v1/load_lora_adapter", "/sdapi/v1/server-kill", "/api/blobs/x"]), st.data())
def test_percent_encoding_hides_nothing(path: str, data: st.DataObject) -> None:
    written = "".join(f"%{ord(sign):02x}" if data.draw(st.booleans()) else sign for sign in path)
    assert is_administration("POST", written)


@given(st.text(max_size=40), st.text(max_size=8))
def test_any_text_is_judged(path: str, method: str) -> None:
    assert is_administration(method, path) in (True, False)
    assert climbs(path) in (True, False)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/b", False),
        ("/a/../b", False),
        ("/a/./../b/..", False),
        ("/..a/b..", False),
        ("/%41", False),
        ("/..", True),
        ("/../b", True),
        ("/./../b", True),
        ("//../b", True),
        ("/a/../../b", True),
        ("/%2e%2e/b", True),
        ("/.%2E%2fb", True),
        ("/a/..\\..\\b", True),
        ("http://host/../b", True),
        ("/a?x=/../..", False),
        ("/a#/../../b", True),
        ("/v2/models/..%2f..%2f..%2f..%2fx/infer", True),
    ],
)
def test_a_path_that_climbs_above_its_root(path: str, expected: bool) -> None:
    assert climbs(path) is expected


@pytest.mark.parametrize(
    ("path", "named", "code"),
    [
        ("/x", False, None),
        ("/sleep", False, "forbidden"),
        ("/sleep", True, None),
        ("/../sleep", True, "malformed_request"),
    ],
)
def test_why_a_path_goes_to_no_node(path: str, named: bool, code: str | None) -> None:
    refusal = path_refusal("POST", path, named)
    assert (refusal.code if refusal else None) == code


def test_what_is_settled_by_the_first_look_is_not_in_the_table() -> None:
    for table in (ALWAYS, WRITING, DELETING):
        for family, paths in table.items():
            assert not INFERENCE.intersection(paths), family
