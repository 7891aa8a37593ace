"""From a file, the environment and flags to a Config, or to every reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from steelyard.config.document import parse_document
from steelyard.config.errors import ConfigError
from steelyard.config.load import SETTINGS, load, validate
from steelyard.config.release import NOT_AVAILABLE, POLICIES_NOT_AVAILABLE, is_available
from steelyard.config.schema import Config

ONE_NODE = "nodes: [{url: http://a:8000}]\n"


def config_of(text: str, environ: Mapping[str, str] | None = None) -> Config:
    return validate(parse_document(text, "s.yaml", environ or {}), "s.yaml")


def problems_of(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        config_of(text, environ)
    return str(raised.value).split("\n")


def test_a_url_is_enough() -> None:
    config = config_of(ONE_NODE)
    assert [(node.name, node.url, node.engine, node.weight) for node in config.nodes] == [
        ("a:8000", "http://a:8000", "auto", 1)
    ]
    assert str(config.listen) == "0.0.0.0:8080"
    assert str(config.admin) == "127.0.0.1:9901"
    assert (config.defaults.policy, config.defaults.memory) == ("least-work", "enforce")
    assert config.limits.body == 64 * 2**20
    assert config.access_log == "stderr"


def test_the_whole_of_what_this_release_has() -> None:
    config = config_of(
        """
listen: 127.0.0.1:80
admin: "[::1]:9901"
auth: {keys: [{key: ${ART_KEY}, tenant: art}, {key: lab-key}]}
trust: {proxies: [10.0.0.0/8, 192.0.2.7]}
nodes:
  - {name: gpu-1, url: http://10.0.0.1:8000/, engine: vllm, gpu_memory: 24GB, models: [sd-1.5],
     version: v1, tier: edge, weight: 2, max_in_flight: 4, api_key: ${CLOUD_KEY}}
telemetry: {interval: 500ms}
aliases: {gpt-4: big, big: llama, small: tiny}
defaults:
  policy: round-robin
  memory: ignore
  affinity: {keys: [header:X-User-ID, cookie:ID, body:user]}
  timeouts: {connect: 1s, first_byte: 30s, idle: 1m, total: 10m}
  queue: {size: 10, wait: 5s}
  retry: {retries: 2, budget: 10%}
routes:
  - name: images
    match: {path: /sdapi/*, models: [sd-*], headers: {x-team: art}}
    policy: consistent-hash
    footprints: [{when: {width: 512, height: 512, operation: txt2img}, memory: 8GB, seconds: 2}]
    timeouts: {total: 5m}
    queue: {size: 0}
    retry: {retries: 0}
    affinity: {keys: [header:X-Seed]}
  - {name: rest, memory: enforce}
limits: {body: 1MiB, body_memory: 1GiB, headers: 16KiB, connections: 100}
response_headers: false
access_log: off
shutdown: {delay: 0, grace: 1h}
""",
        {"ART_KEY": "art-key", "CLOUD_KEY": "cloud-key"},
    )
    node = config.nodes[0]
    assert (node.name, node.url, node.gpu_memory, node.models) == (
        "gpu-1",
        "http://10.0.0.1:8000",
        24 * 10**9,
        ("sd-1.5",),
    )
    assert node.api_key is not None
    assert node.api_key.get_secret_value() == "cloud-key"
    assert [(key.key.get_secret_value(), key.tenant) for key in config.auth.keys] == [
        ("art-key", "art"),
        ("lab-key", "default"),
    ]
    assert config.trust.proxies == (ip_network("10.0.0.0/8"), ip_network("192.0.2.7"))
    assert config.telemetry.interval == 0.5
    assert config.aliases == {"gpt-4": "llama", "big": "llama", "small": "tiny"}, "chains end at the model"
    assert config.access_log == "off"
    assert config.response_headers is False
    assert (config.shutdown.delay, config.shutdown.grace) == (0.0, 3600.0)
    images, rest = config.routes
    assert images.footprints[0].when == {"width": 512, "height": 512, "operation": "txt2img"}
    assert (images.footprints[0].memory, images.footprints[0].seconds) == (8 * 10**9, 2.0)

    settings = images.settings(config.defaults)
    assert (settings.policy, settings.memory) == ("consistent-hash", "ignore")
    assert settings.timeouts.total == 300.0
    assert settings.timeouts.connect == 1.0, "what a route does not say, it inherits"
    assert (settings.queue.size, settings.queue.wait) == (0, 5.0)
    assert (settings.retry.retries, settings.retry.budget) == (0, 0.1)
    assert settings.affinity.keys == ("header:X-Seed",)
    assert rest.settings(config.defaults).memory == "enforce"
    assert rest.settings(config.defaults).policy == "round-robin"


def test_long_chains_of_aliases_are_followed_and_long_circles_found() -> None:
    chain = "\n".join(f"  a{n}: a{n + 1}" for n in range(5000))
    config = config_of(f"{ONE_NODE}aliases:\n{chain}\n")
    assert set(config.aliases.values()) == {"a5000"}
    (problem,) = problems_of(f"{ONE_NODE}aliases:\n{chain}\n  a5000: a2000\n  b: a2500\n")
    assert problem.startswith("s.yaml:2003: aliases.a2000: goes in a circle: a2000 -> a2001 -> ")
    assert problem.endswith(" -> a5000 -> a2000; the last must be a model")


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        config_of(ONE_NODE).limits.body = 1  # type: ignore[misc]


POLICIES = (
    "least-work, round-robin, weighted-round-robin, random, least-request, power-of-two, peak-ewma, "
    "least-response-time, consistent-hash"
)
ENGINES = "auto, vllm, sglang, triton, tgi, llamacpp, ollama, sdwebui, comfyui, openai, generic"

# What is written beside one node, and all that is said of it. {} stands for the line of ONE_NODE before it.
BAD_VALUES: list[tuple[str, list[str]]] = [
    # unknown keys
    ("lisen: 0.0.0.0:80", ["s.yaml:2: lisen: unknown key; did you mean listen?"]),
    ("limits: {Body: 1}", ["s.yaml:2: limits.Body: unknown key; did you mean body?"]),
    ("limits:\n  body-memory: 1", ["s.yaml:3: limits.body-memory: unknown key; did you mean body_memory?"]),
    (
        "limits: {xyz: 1}",
        [
            "s.yaml:2: limits.xyz: unknown key; known here: body, body_memory, body_disk, body_directory, headers, "
            "tenants, connections"
        ],
    ),
    (
        "defaults: {zzz: 1}",
        ["s.yaml:2: defaults.zzz: unknown key; known here: policy, memory, affinity, timeouts, queue, retry"],
    ),
    ("policy: random", ["s.yaml:2: policy: unknown key; did you mean policy, under defaults: or in a route?"]),
    ("timeout: {total: 5}", ["s.yaml:2: timeout: unknown key; did you mean timeouts, under defaults: or in a route?"]),
    (
        "routes: [{name: a, match: {paths: /x}}]",
        ["s.yaml:2: routes[0].match.paths: unknown key; did you mean path?"],
    ),
    # wrong units
    (
        "limits: {body: 24GX}",
        ["s.yaml:2: limits.body: '24GX' is not a size; write e.g. 24GB or 24GiB (a bare number is whole bytes)"],
    ),
    ("limits: {body: 0}", ["s.yaml:2: limits.body: 0 must be larger than 0; write e.g. 64MiB"]),
    (
        "limits: {body: 16}",
        ["s.yaml:2: limits.body: 16 is too small; the least is 1KB (a bare number is bytes: 64MiB)"],
    ),
    ("limits: {headers: 16B}", ["s.yaml:2: limits.headers: '16B' is too small; the least is 1KB"]),
    (
        "limits: {body: [1]}",
        ["s.yaml:2: limits.body: a list is not a size; write e.g. 24GB or 24GiB (a bare number is whole bytes)"],
    ),
    (
        "telemetry: {interval: fast}",
        [
            "s.yaml:2: telemetry.interval: 'fast' is not a duration; "
            "write e.g. 250ms, 30s, 5m or 1h (a bare number is seconds)"
        ],
    ),
    ("telemetry: {interval: 0s}", ["s.yaml:2: telemetry.interval: '0s' must be longer than 0; write e.g. 30s"]),
    ("telemetry: {interval: 1ms}", ["s.yaml:2: telemetry.interval: '1ms' is too short; the least is 10ms"]),
    (
        "defaults: {retry: {budget: 20}}",
        ["s.yaml:2: defaults.retry.budget: 20 is not a share; write e.g. 30% or 0.3 (at most 100% or 1)"],
    ),
    # wrong kinds
    ("listen: 8080", ["s.yaml:2: listen: 8080 is not an address to listen on; write e.g. 0.0.0.0:8080 or [::1]:8080"]),
    ("listen: ':99999'", ["s.yaml:2: listen: ':99999' has the port 99999; a port is a number up to 65535"]),
    ("response_headers: maybe", ["s.yaml:2: response_headers: 'maybe' is not true or false"]),
    ("limits: {connections: many}", ["s.yaml:2: limits.connections: 'many' is not a whole number; write e.g. 4"]),
    ("limits: {connections: 1.5}", ["s.yaml:2: limits.connections: 1.5 is not a whole number; write e.g. 4"]),
    ("limits: {connections: 0}", ["s.yaml:2: limits.connections: 0 is too small; the least is 1"]),
    ("limits: {connections: true}", ["s.yaml:2: limits.connections: true is not a whole number; write e.g. 4"]),
    (
        f"limits: {{connections: {'9' * 5000}}}",
        [f"s.yaml:2: limits.connections: '{'9' * 75}...' is not a whole number; write e.g. 4"],
    ),
    ("defaults: {queue: {size: -1}}", ["s.yaml:2: defaults.queue.size: -1 is too small; the least is 0"]),
    ("limits:", ["s.yaml:2: limits: has no value (a mapping is expected); write one, or leave the key out"]),
    ("limits: 5", ["s.yaml:2: limits: 5 is not a mapping of keys"]),
    ("limits: [a]", ["s.yaml:2: limits: a list is not a mapping of keys"]),
    ("trust: {proxies: 10.0.0.0/8}", ["s.yaml:2: trust.proxies: '10.0.0.0/8' is not a list; write ['10.0.0.0/8']"]),
    (
        "trust: {proxies: }",
        ["s.yaml:2: trust.proxies: has no value (a list is expected); write one, or leave the key out"],
    ),
    (
        "access_log: 5",
        ["s.yaml:2: access_log: 5 is a number or a truth value here; put quotes around it, as it is written"],
    ),
    ("access_log: ''", ["s.yaml:2: access_log: '' is empty"]),
    (
        'access_log: "a\\0b"',
        ["s.yaml:2: access_log: 'a\\x00b' is not a file name; write stderr, stdout, off or a file"],
    ),
    ("aliases: [a]", ["s.yaml:2: aliases: a list is not a mapping of keys"]),
    (
        "aliases: {a: 4}",
        ["s.yaml:2: aliases.a: 4 is a number or a truth value here; put quotes around it, as it is written"],
    ),
    ("aliases: {a: ' '}", ["s.yaml:2: aliases.a: ' ' is empty"]),
    (
        "trust: {proxies: [10.0.0.1/8]}",
        ["s.yaml:2: trust.proxies[0]: '10.0.0.1/8' names a host inside a network; write 10.0.0.0/8 for the network"],
    ),
    (
        "cors: {origins: [https://app.example/]}",
        [
            "s.yaml:2: cors.origins[0]: 'https://app.example/' is not an origin; "
            "write e.g. https://app.example, without a path"
        ],
    ),
    (
        "limits: {tenants: {art: {requests: 0}}}",
        ["s.yaml:2: limits.tenants.art.requests: 0 is too small; the least is 1"],
    ),
    # addresses
    ("listen: 'unix:'", ["s.yaml:2: listen: 'unix:' names no socket; write e.g. unix:/run/steelyard.sock (107 bytes)"]),
    ("admin: unix:/run/a", ["s.yaml:2: admin: the admin API is served over TCP only; write e.g. 127.0.0.1:9901"]),
    # choices
    (
        "defaults: {policy: least_wrk}",
        [f"s.yaml:2: defaults.policy: 'least_wrk' is not one of {POLICIES}; did you mean least-work?"],
    ),
    ("defaults: {policy: 7}", [f"s.yaml:2: defaults.policy: 7 is not one of {POLICIES}"]),
    (
        "defaults: {memory: enforced}",
        ["s.yaml:2: defaults.memory: 'enforced' is not one of enforce, ignore; did you mean enforce?"],
    ),
    # routes
    ("routes: [{match: {path: /x}}]", ["s.yaml:2: routes[0].name: is missing; write name: chat"]),
    (
        "routes: [{name: a, match: {path: v1}}]",
        ["s.yaml:2: routes[0].match.path: 'v1' is not a path; write e.g. /v1/chat/completions or /sdapi/*"],
    ),
    (
        "routes: [{name: a, match: {headers: {日: b}}}]",
        ["s.yaml:2: routes[0].match.headers.日: '日' is not the name of a header; write e.g. x-team"],
    ),
    (
        "routes: [{name: a, match: {headers: {X A: b}}}]",
        ["s.yaml:2: routes[0].match.headers['X A']: 'X A' is not the name of a header; write e.g. x-team"],
    ),
    (
        f"limits: {{body: {'9' * 5000}GB}}",
        [
            f"s.yaml:2: limits.body: '{'9' * 75}...' is not a size; "
            "write e.g. 24GB or 24GiB (a bare number is whole bytes)"
        ],
    ),
    (
        "routes: [{name: a, footprints: [{when: {widht: 512}, memory: 8GB}]}]",
        [
            "s.yaml:2: routes[0].footprints[0].when.widht: 'widht' is not one of operation, model, width, height, "
            "steps, images, samples, prompt_tokens, max_tokens, audio_seconds, body_bytes; did you mean width?"
        ],
    ),
    (
        "routes: [{name: a, footprints: [{memory: 8GB}]}]",
        ["s.yaml:2: routes[0].footprints[0].when: is missing; write when: {width: 512, height: 512}"],
    ),
    (
        "routes: [{name: a, footprints: [{when: {width: true, steps: -1}}]}]",
        [
            "s.yaml:2: routes[0].footprints[0].when.width: true is not a size or a name; write e.g. width: 512",
            "s.yaml:2: routes[0].footprints[0].when.steps: -1 is not a size; a size is 0 or more",
        ],
    ),
    (
        "defaults: {affinity: {keys: [X-User-ID]}}",
        [
            "s.yaml:2: defaults.affinity.keys[0]: 'X-User-ID' is not a session key; "
            "write e.g. header:X-User-ID, cookie:USER_SESSION or body:user"
        ],
    ),
    # what occurs twice
    (
        "routes:\n  - {name: a, match: {path: /a}}\n  - {name: a, match: {path: /b}}",
        ["s.yaml:4: routes[1].name: 'a' is the name of routes[0] (line 3) too; give each its own"],
    ),
    (
        "auth: {keys: [{key: k}, {key: k, tenant: b}]}",
        ["s.yaml:2: auth.keys[1].key: is the same key as auth.keys[0].key (line 2); one key belongs to one tenant"],
    ),
    # contradictions
    ("aliases: {a: a}", ["s.yaml:2: aliases.a: goes in a circle: a -> a; the last must be a model"]),
    (
        "aliases:\n  x: a\n  a: b\n  b: c\n  c: a\n",
        ["s.yaml:4: aliases.a: goes in a circle: a -> b -> c -> a; the last must be a model"],
    ),
    ("admin: 0.0.0.0:8080", ["s.yaml:2: admin: listen and admin both take port 8080; give each its own"]),
    ("admin: 127.0.0.1:8080", ["s.yaml:2: admin: listen and admin both take port 8080; give each its own"]),
    ("listen: 127.0.0.1:9901", ["s.yaml:2: listen: listen and admin both take port 9901; give each its own"]),
    (
        "routes:\n  - {name: a}\n  - {name: b, match: {path: /x}}",
        ["s.yaml:4: routes[1]: is never reached: routes[0] (line 3) matches every request; put it last"],
    ),
    (
        "defaults: {timeouts: {first_byte: 1h, total: 30m}}",
        ["s.yaml:2: defaults.timeouts.first_byte: '1h' is more than total ('30m'), and could never be reached"],
    ),
    (
        "routes: [{name: a, timeouts: {idle: 61, total: 1m}}]",
        ["s.yaml:2: routes[0].timeouts.idle: 61 is more than total ('1m'), and could never be reached"],
    ),
    (
        "limits: {body: 2GiB, body_memory: 1GiB}",
        ["s.yaml:2: limits.body: '2GiB' is more than body_memory ('1GiB'), and could never be reached"],
    ),
    (
        "defaults: {policy: consistent-hash, affinity: {keys: []}}",
        [
            "s.yaml:2: defaults.policy: consistent-hash needs a session key, but affinity.keys is []; "
            "name at least one key"
        ],
    ),
    (
        "defaults: {affinity: {keys: []}}\nroutes: [{name: a, policy: consistent-hash}]",
        [
            "s.yaml:3: routes[0].policy: consistent-hash needs a session key, but affinity.keys is []; "
            "name at least one key"
        ],
    ),
]


@pytest.mark.parametrize(("text", "expected"), BAD_VALUES, ids=[text[:60] for text, _ in BAD_VALUES])
def test_bad_input_is_one_clear_line_each(text: str, expected: list[str]) -> None:
    assert problems_of(ONE_NODE + text) == expected


BAD_NODES: list[tuple[str, list[str]]] = [
    ("[]", ["s.yaml:1: nodes: there are no nodes; write nodes: [{url: http://10.0.0.1:8000}], or give --node URL"]),
    ("[http://a]", ["s.yaml:1: nodes[0]: 'http://a' is not a mapping of keys; write url: 'http://a'"]),
    (
        "[{url: a, gpu_memory: 24}]",
        ["s.yaml:1: nodes[0].gpu_memory: 24 is too small; the least is 1MB (a bare number is bytes: 24GB)"],
    ),
    ("[{url: a, tls: {}}]", ["s.yaml:1: nodes[0].tls: is for https, but the url is 'a'"]),
    (
        "[{url: https://a, tls: {certificate: a.pem}}]",
        ["s.yaml:1: nodes[0].tls: certificate and private_key belong together; write both, or none"],
    ),
    (
        "[{url: a, engine: tfserving}]",
        [
            "s.yaml:1: nodes[0].engine: the engine tfserving is not available in this release; "
            "generic relays its requests without weighing them"
        ],
    ),
    ("[{name: a}]", ["s.yaml:1: nodes[0].url: is missing; write url: http://10.0.0.1:8000"]),
    (
        "[{url: ftp://a}]",
        [
            "s.yaml:1: nodes[0].url: 'ftp://a' has the scheme 'ftp'; a node speaks http or https, "
            "write e.g. http://10.0.0.1:8000"
        ],
    ),
    (
        "[{url: a, engine: vlm}]",
        [f"s.yaml:1: nodes[0].engine: 'vlm' is not one of {ENGINES}; did you mean vllm?"],
    ),
    ("[{url: a, weight: -1}]", ["s.yaml:1: nodes[0].weight: -1 is too small; the least is 0"]),
    ("[{url: a, max_in_flight: 0}]", ["s.yaml:1: nodes[0].max_in_flight: 0 is too small; the least is 1"]),
    (
        "[{url: a, models: []}]",
        ["s.yaml:1: nodes[0].models: is an empty list; write at least one, or leave the key out"],
    ),
    ("[{url: a, models: sd}]", ["s.yaml:1: nodes[0].models: 'sd' is not a list; write ['sd']"]),
    (
        "[{url: a, version: 1.10}]",
        ["s.yaml:1: nodes[0].version: 1.1 is a number or a truth value here; put quotes around it, as it is written"],
    ),
    (
        "\n  - {url: a, name: x}\n  - {url: b, name: x}",
        ["s.yaml:3: nodes[1].name: 'x' is the name of nodes[0] (line 2) too; give each its own"],
    ),
    (
        "\n  - {url: http://a:80/}\n  - {url: A}",
        ["s.yaml:3: nodes[1].url: 'A' is the URL of nodes[0] (line 2) too; list a node once"],
    ),
    (
        "\n  - {url: http://a/one}\n  - {url: http://a/two}",
        ["s.yaml:3: nodes[1].url: 'a:80' is the name of nodes[0] (line 2) too; give each its own"],
    ),
    (
        "\n  - {url: a, name: 'b:80'}\n  - {url: b}",
        ["s.yaml:3: nodes[1].url: 'b:80' is the name of nodes[0] (line 2) too; give each its own"],
    ),
]


@pytest.mark.parametrize(("text", "expected"), BAD_NODES, ids=[text[:60] for text, _ in BAD_NODES])
def test_bad_nodes_are_one_clear_line_each(text: str, expected: list[str]) -> None:
    assert problems_of(f"nodes: {text}") == expected


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    text = "listen: x\nnodes:\n  - {url: a, gpu_memory: 24GX}\n  - {url: a}\nedge: {}\nlimts: {}\naliases: {a: a}\n"
    assert [line.split(": ")[1] for line in problems_of(text)] == [
        "listen",
        "nodes[0].gpu_memory",
        "nodes[1].url",
        "edge",
        "limts",
        "aliases.a",
    ]


def test_two_listeners_may_share_a_port_number_on_different_addresses_or_take_any() -> None:
    config_of(ONE_NODE + "listen: 127.0.0.1:80\nadmin: '[::1]:80'")
    config_of(ONE_NODE + "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0")


# The least that is written for each key that is not in this release.
UNAVAILABLE_EXAMPLES = {
    "secret": "secret: [a]",
    "discovery": "discovery: {file: nodes.d/*.yaml}",
    "edge": "edge: {spill_at: 60%}",
    "stores": "stores: {sessions: memory}",
    "defaults.affinity.ttl": "defaults: {affinity: {ttl: 30m}}",
    "defaults.affinity.mode": "defaults: {affinity: {mode: strict}}",
    "defaults.outlier": "defaults: {outlier: {consecutive: 5}}",
    "nodes[].metrics_url": "nodes:\n  - {url: a, metrics_url: 'http://a:8002/metrics'}",
    "routes[].affinity.ttl": "routes: [{name: a, affinity: {ttl: 30m}}]",
    "routes[].affinity.mode": "routes: [{name: a, affinity: {mode: prefer}}]",
    "routes[].outlier": "routes: [{name: a, outlier: {max_ejected: 30%}}]",
    "routes[].weights": "routes: [{name: a, weights: [{below: 50%, weight: 3}, {weight: 0}]}]",
    "routes[].context": "routes: [{name: a, context: {mode: inject, ttl: 30m, max_tokens: 3000}}]",
    "routes[].versions": "routes: [{name: a, versions: {by: [header:model-version], default: v1, split: {v1: 95}}}]",
}


@pytest.mark.parametrize("key", NOT_AVAILABLE)
def test_a_key_of_a_feature_to_come_is_refused_and_not_ignored(key: str) -> None:
    path = key.replace("[]", "[0]")
    expected = f"s.yaml:2: {path}: not available in this release{NOT_AVAILABLE[key]}"
    example = UNAVAILABLE_EXAMPLES[key]
    text = example if example.startswith("nodes:") else ONE_NODE + example
    assert problems_of(text) == [expected]
    assert not is_available(key)
    assert not is_available(f"{key}.inner")


@pytest.mark.parametrize("policy", sorted(POLICIES_NOT_AVAILABLE))
def test_a_policy_to_come_is_refused(policy: str) -> None:
    for text, path in (
        (f"defaults: {{policy: {policy}}}", "defaults.policy"),
        (f"routes: [{{name: a, policy: {policy}}}]", "routes[0].policy"),
    ):
        expected = f"the policy {policy} is not available in this release; the default is least-work"
        assert problems_of(ONE_NODE + text) == [f"s.yaml:2: {path}: {expected}"]


def test_the_policies_that_can_be_written_are_those_of_the_core() -> None:
    from steelyard.core import policies

    choices: Any = Config.model_json_schema()["$defs"]["Defaults"]["properties"]["policy"]["enum"]
    assert set(choices) - POLICIES_NOT_AVAILABLE == set(policies.names())


# Precedence: flag > environment > file > default.


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "steelyard.yaml"
    path.write_text("listen: 1.1.1.1:1\nnodes: [{url: http://file, gpu_memory: 24GB}]\ndefaults: {policy: random}\n")
    return str(path)


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(file: str) -> None:
    environ = {"STEELYARD_LISTEN": "2.2.2.2:2"}
    overrides = {"listen": "3.3.3.3:3"}
    assert str(load(None, {"nodes": ["a"]}, {}).listen) == "0.0.0.0:8080"
    assert str(load(file, None, {}).listen) == "1.1.1.1:1"
    assert str(load(file, None, environ).listen) == "2.2.2.2:2"
    assert str(load(file, {"listen": None}, environ).listen) == "2.2.2.2:2"
    assert str(load(file, overrides, environ).listen) == "3.3.3.3:3"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.variable)
def test_every_setting_has_a_flag_and_a_variable(setting: Any) -> None:
    written: dict[str, tuple[str, Any]] = {
        "listen": ("1.1.1.1:1", ("1.1.1.1", 1)),
        "admin": ("1.1.1.1:2", ("1.1.1.1", 2)),
        "nodes": ("http://n", "http://n"),
        "defaults.policy": ("random", "random"),
        "defaults.memory": ("ignore", "ignore"),
        "telemetry.interval": ("2s", 2.0),
        "response_headers": ("false", False),
        "access_log": ("off", "off"),
        "shutdown.delay": ("1s", 1.0),
        "shutdown.grace": ("1m", 60.0),
    }
    text, expected = written[setting.path]

    def value_in(config: Config) -> Any:
        value: Any = config
        for part in setting.path.split("."):
            value = getattr(value, part)
        return value[0].url if setting.path == "nodes" else value

    base: dict[str, Any] = {} if setting.path == "nodes" else {"nodes": ["http://a"]}
    flag = [text] if setting.path == "nodes" else text
    assert value_in(load(None, base, {setting.variable: text})) == expected
    assert value_in(load(None, {**base, setting.path: flag}, {})) == expected
    assert setting.flag.startswith("--")


def test_nodes_of_a_flag_replace_those_of_the_file(file: str) -> None:
    nodes = load(file, {"nodes": ["http://a:8000", {"url": "http://b", "gpu_memory": "8GB"}]}, {}).nodes
    assert [(node.url, node.gpu_memory) for node in nodes] == [("http://a:8000", None), ("http://b", 8 * 10**9)]
    nodes = load(file, {}, {"STEELYARD_NODE": "http://a:8000, http://b http://c"}).nodes
    assert [node.url for node in nodes] == ["http://a:8000", "http://b", "http://c"]
    assert load(file, {"nodes": []}, {}).nodes[0].url == "http://file", "no flag at all is no empty list"


def test_the_file_may_be_named_by_the_environment(file: str) -> None:
    assert load(None, None, {"STEELYARD_CONFIG": file}).nodes[0].url == "http://file"
    with pytest.raises(ConfigError, match="nowhere: cannot be read"):
        load(None, None, {"STEELYARD_CONFIG": "nowhere"})


@pytest.mark.parametrize(
    ("overrides", "environ", "expected"),
    [
        (
            {"nodes": ["ftp://x"]},
            {},
            "--node: 'ftp://x' has the scheme 'ftp'; a node speaks http or https, write e.g. http://10.0.0.1:8000",
        ),
        ({"nodes": ["a", "a"]}, {}, "--node: 'a' is the URL of nodes[0] too; list a node once"),
        (
            {"listen": "80", "nodes": ["a"]},
            {},
            "--listen: '80' is not an address to listen on; write e.g. 0.0.0.0:8080 or [::1]:8080",
        ),
        (
            {"defaults.policy": "rnadom", "nodes": ["a"]},
            {},
            f"--policy: 'rnadom' is not one of {POLICIES}; did you mean random?",
        ),
        (
            {"nodes": ["a"]},
            {"STEELYARD_ADMIN": "x"},
            "STEELYARD_ADMIN: 'x' is not an address to listen on; write e.g. 0.0.0.0:8080 or [::1]:8080",
        ),
        (
            {},
            {},
            "steelyard: nodes: there are no nodes; write nodes: [{url: http://10.0.0.1:8000}], or give --node URL",
        ),
    ],
)
def test_a_wrong_flag_or_variable_is_named(overrides: dict[str, Any], environ: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(None, overrides, environ)
    assert str(raised.value) == expected


def test_a_flag_mends_a_wrong_value_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("listen: nonsense\nnodes: [{url: ftp://x}]\n")
    assert str(load(str(path), {"listen": "1.1.1.1:1", "nodes": ["a"]}, {}).listen) == "1.1.1.1:1"


def test_a_flag_inside_a_section_that_is_none_is_still_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("defaults: fast\nnodes: [{url: a}]\n")
    with pytest.raises(ConfigError) as raised:
        load(str(path), {"defaults.policy": "random"}, {})
    assert str(raised.value) == f"{path}:1: defaults: 'fast' is not a mapping of keys"


# Secrets are never printed.

SECRET = "hunter2-hunter2"

SECRETS_IN_ERRORS = [
    f"auth: {{keys: [{{key: 'with space {SECRET}'}}]}}",
    f"auth: {{keys: [{{key: {{a: {SECRET}}}}}]}}",
    f"auth: {{keys: [{SECRET}]}}",
    f"auth: {{keys: [{{key: {SECRET}}}, {{key: {SECRET}}}]}}",
    f"auth: {{keys: [{{key: {SECRET}, tenant: ''}}]}}",
    f"auth: {{keys: {{key: {SECRET}}}}}",
    f"secret: {SECRET}",
    f"secret: [[{SECRET}]]",
    "listen: ${HUNTER}",
    "limits: {body: ${HUNTER}}",
    "limits: {connections: ${HUNTER}}",
    "limits: ${HUNTER}",
    "defaults: {policy: ${HUNTER}}",
    "defaults: {timeouts: {connect: ${HUNTER}}}",
    "trust: {proxies: ${HUNTER}}",
    "trust: {proxies: ['${HUNTER}']}",
    "response_headers: ${HUNTER}",
    "routes: [{name: ${HUNTER}, match: {path: /a}}, {name: ${HUNTER}, match: {path: /b}}]",
    "nodes:\n  - {url: 'http://h/?${HUNTER}'}",
    "nodes:\n  - {url: 'http://me:${HUNTER}@h'}",
    "nodes:\n  - {url: 'http://${HUNTER}'}\n  - {url: 'http://${HUNTER}'}",
    "nodes:\n  - {url: a, name: '${HUNTER}'}\n  - {url: b, name: '${HUNTER}'}",
    "nodes: ['${HUNTER}']",
    f"nodes: ['http://me:{SECRET}@h']",
    f"nodes:\n  - {{url: a, api_key: {SECRET} {SECRET}}}",
    f"nodes:\n  - {{url: a, api_key: [{SECRET}]}}",
    f"api_key: *{SECRET}",
    f"auth: {{keys: [{{key: {SECRET}, key: {SECRET}}}]}}",
    f"auth: {{keys: [{{key: ${{{SECRET}]}}",
]


@pytest.mark.parametrize("text", SECRETS_IN_ERRORS)
def test_a_secret_is_never_printed(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config_of(text if "nodes:" in text else ONE_NODE + text, {"HUNTER": SECRET})
    assert SECRET not in str(raised.value)
    assert SECRET not in repr(raised.value)


def test_what_was_expanded_is_shown_as_stars() -> None:
    assert problems_of(ONE_NODE + "limits: {body: ${SIZE}}", {"SIZE": "24GX"}) == [
        "s.yaml:2: limits.body: *** is not a size; write e.g. 24GB or 24GiB (a bare number is whole bytes)"
    ]


def test_a_config_does_not_show_its_secrets() -> None:
    text = f"auth: {{keys: [{{key: {SECRET}}}]}}\nnodes: [{{url: a, api_key: {SECRET}}}]"
    config = config_of(text)
    assert SECRET not in repr(config)
    assert SECRET not in config.model_dump_json()


NAMED = {
    "nodes[0].name": "nodes: [{url: 'http://a', name: %s}]",
    "nodes[0].version": "nodes: [{url: 'http://a', version: %s}]",
    "nodes[0].models[0]": "nodes: [{url: 'http://a', models: [%s]}]",
    "routes[0].name": "nodes: [{url: 'http://a'}]\nroutes: [{name: %s}]",
    "auth.keys[0].tenant": "nodes: [{url: 'http://a'}]\nauth: {keys: [{key: k, tenant: %s}]}",
    "aliases.x": "nodes: [{url: 'http://a'}]\naliases: {x: %s}",
}
"""What is written into headers of answers, labels of metrics and lines of logs."""


@pytest.mark.parametrize("text", NAMED.values(), ids=NAMED)
@pytest.mark.parametrize("name", ["a\\r\\nx-evil: 1", "a\\nb", "a\\0b", "a\\tb", "a\\x7f", "a\\x85b", "a\\u2028b"])
def test_a_name_has_no_character_that_cannot_be_seen(text: str, name: str) -> None:
    (problem,) = problems_of(text % f'"{name}"')
    assert "a name has only printable ones" in problem
    assert problem.isprintable(), "nor does the message"
    assert problem.startswith("s.yaml:")


@pytest.mark.parametrize("text", NAMED.values(), ids=NAMED)
def test_a_name_may_have_letters_of_any_language_and_spaces_inside(text: str) -> None:
    config_of(text % '"größe 2 モデル"')
    (problem,) = problems_of(text % '" a "')
    assert "begins or ends with a space; write 'a'" in problem


def test_an_alias_is_a_name_too() -> None:
    (problem,) = problems_of('nodes: [{url: "http://a"}]\naliases: {"a\\nb": m}')
    assert "a name has only printable ones" in problem
