"""Paths that rule a model server, not ask it for work: who may ask for answers may not kill or empty a node.

A gateway answers them with 403 `forbidden`, unless a route names the path. The table holds what the engines document,
a family each; most of them are on only with a flag, some always. What is decided by a field of the body (Ollama's
`keep_alive: 0`), or by gRPC (the model configuration of TensorFlow Serving), cannot be seen here.

Only operations that `steelyard.dialects.recognise` calls `other` can be administration: what it knows by name is
inference, and needs no look here.
"""

from __future__ import annotations

import re
from posixpath import normpath
from typing import Final

from steelyard.core.refusal import Refusal

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

ALWAYS: Final[dict[str, tuple[str, ...]]] = {
    "vllm": (
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/sleep",
        "/wake_up",
        "/release_kv_cache_memory",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/collective_rpc",
        "/pause",
        "/resume",
        "/abort_requests",
        "/inference/v1/abort_requests",
        "/scale_elastic_ep",
        "/fault_tolerance/apply",
        "/start_profile",
        "/stop_profile",
        "/init_weight_transfer_engine",
        "/update_weights*",
    ),
    "sglang": (
        "/load_lora_adapter*",
        "/unload_lora_adapter",
        "/flush_cache",
        "/clear_hicache_storage_backend",
        "/hicache/**",
        "/abort_request",  # `abort_all` ends everybody's
        "/pause_generation",
        "/continue_generation",
        "/slow_down",
        "/release_memory_occupation",
        "/resume_memory_occupation",
        "/update_weight_version",
        "/init_weights_*",
        "/destroy_weights_*",
        "/send_weights_*",
        "/set_internal_state",
        "/pd_role_switch",
        "/configure_logging",
        "/set_trace_level",
        "/freeze_gc",
        "/start_expert_distribution_record",
        "/stop_expert_distribution_record",
        "/dump_expert_distribution_record",
    ),
    "lmdeploy": ("/wakeup", "/terminate", "/distserve/**", "/nodes/add", "/nodes/remove", "/nodes/terminate*"),
    "trtllm": ("/release_memory", "/resume_memory", "/kv_cache_events"),
    "triton": (
        "/v2/repository/models/*/load",
        "/v2/repository/models/*/unload",
        "/v2/repository/*/models/*/load",
        "/v2/repository/*/models/*/unload",
        "/v2/*sharedmemory/register",
        "/v2/*sharedmemory/unregister",
        "/v2/*sharedmemory/region/*/register",
        "/v2/*sharedmemory/region/*/unregister",
    ),
    "llamacpp": ("/models/load", "/models/unload"),
    "ollama": (
        "/api/delete",
        "/api/pull",
        "/api/push",
        "/api/create",
        "/api/copy",
        "/api/blobs/**",
        "/api/signout",
    ),
    "sdwebui": (
        "/sdapi/v1/server-*",
        "/sdapi/v1/unload-checkpoint",
        "/sdapi/v1/reload-checkpoint",
        "/sdapi/v1/refresh-*",
        "/sdapi/v1/interrupt",  # this and the next end the job that runs, whosever it is
        "/sdapi/v1/skip",
        "/sdapi/v1/create/*",
        "/sdapi/v1/train/*",
    ),
    "comfyui": (
        "/interrupt",
        "/free",
        "/api/interrupt",
        "/api/free",
        # ComfyUI-Manager, which nearly everybody has: GET /manager/reboot ends the server
        "/manager/**",
        "/customnode/**",
        "/api/manager/**",
        "/api/customnode/**",
    ),
    "steelyard": ("/_emulator", "/_emulator/**"),
}
"""Refused by any method: some of these servers act on a GET too. `*` is within a segment, `**` is anything."""

WRITING: Final[dict[str, tuple[str, ...]]] = {
    "vllm": ("/fault_tolerance/**",),
    "triton": (
        "/v2/trace/setting",
        "/v2/logging",
        "/v2/models/*/trace/setting",
        "/v2/models/*/versions/*/trace/setting",
    ),
    "llamacpp": ("/slots/**", "/lora-adapters", "/props", "/models"),
    "torchserve": ("/models/**", "/workflows", "/workflows/**"),
    "sdwebui": ("/sdapi/v1/options",),
    "comfyui": ("/queue", "/history", "/api/queue", "/api/history"),
}
"""Refused unless the method only reads: who asks for the state does no harm."""

DELETING: Final[dict[str, tuple[str, ...]]] = {"openai": ("/v1/models/**",)}
"""Refused when the method is DELETE. (A POST below /v1/models is inference: TensorFlow Serving's and KServe's v1.)"""

INFERENCE: Final = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/models",
        "/generate",
        "/generate_stream",
        "/completion",
        "/embed",
        "/embedding",
        "/invocations",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
        "/api/tags",
        "/api/ps",
        "/api/show",
        "/prompt",
        "/health",
        "/metrics",
    }
)
"""What most requests ask for, whatever the method: settled by one look-up."""


def _split(*tables: dict[str, tuple[str, ...]]) -> tuple[frozenset[str], re.Pattern[str]]:
    """The plain paths of the tables, and one expression for those with stars."""
    paths = [path for table in tables for family in table.values() for path in family]
    stars = [path for path in paths if "*" in path]
    expressions = (re.escape(path).replace(r"\*\*", ".+").replace(r"\*", "[^/]*") for path in stars)
    return frozenset(paths).difference(stars), re.compile("|".join(expressions), re.DOTALL)


_BY_METHOD: Final = {
    **dict.fromkeys(READING, _split(ALWAYS)),
    "DELETE": _split(ALWAYS, WRITING, DELETING),
}
_OTHERS: Final = _split(ALWAYS, WRITING)

_ESCAPED: Final = re.compile("%([0-9a-fA-F]{2})")
_PLAIN: Final = re.compile(r"(?:/[a-z0-9_-][a-z0-9_.-]*)+").fullmatch
_END: Final = re.compile("[?]")
_AUTHORITY: Final = re.compile("[a-zA-Z][a-zA-Z0-9+.-]*://[^/]*")


def is_administration(method: str, path: str) -> bool:
    """Whether a request rules the server. `path` is as it came, and may have a query.

    The ways of writing a path that one server or another takes for the same are the same here: percent-encoding,
    double slashes, one at the end, dot segments, upper and lower case, and an absolute form with its authority.
    """
    if path in INFERENCE:
        return False
    exact, starred = _BY_METHOD.get(method.upper(), _OTHERS)
    if not _PLAIN(path):
        path = plain(path)
    return path in exact or starred.fullmatch(path) is not None


def path_refusal(method: str, path: str, opened: bool) -> Refusal | None:
    """Why a request with this path goes to no node, if it does not. `opened`: it may rule a server, or does not."""
    if climbs(path):
        return Refusal("malformed_request", f"{path} climbs above the root")
    if not opened and is_administration(method, path):
        return Refusal("forbidden", f"{path} administers a node; only a route that names it opens it")
    return None


def climbs(path: str) -> bool:
    """Whether a path leads out of what it is put behind, such as the path of a node's URL: `/../x`, also encoded."""
    if ".." not in path and "%" not in path:
        return False
    depth = 0
    for segment in decoded(path).replace("\\", "/").split("/")[1:]:
        if segment == "..":
            depth -= 1
            if depth < 0:
                return True
        elif segment not in ("", "."):
            depth += 1
    return False


def plain(path: str) -> str:
    """One way of writing a path: decoded, in lower case, and with single slashes."""
    # normpath keeps two slashes at the start, as POSIX wants it.
    return normpath("/" + decoded(path).lower().lstrip("/"))


def decoded(path: str) -> str:
    """A path without its query, its authority and its percent-encoding."""
    path = _END.split(path, maxsplit=1)[0]
    if not path.startswith("/"):
        path = _AUTHORITY.sub("", path, count=1)
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), path)
