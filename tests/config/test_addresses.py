"""Where to listen, where a node is, whom to trust."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.config.addresses import Address, parse_address, parse_network, parse_node_url


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("0.0.0.0:8080", Address("0.0.0.0", 8080)),
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("localhost:80", Address("localhost", 80)),
        ("[::1]:8080", Address("::1", 8080)),
        (":8080", Address("0.0.0.0", 8080)),
    ],
)
def test_an_address_to_listen_on(written: str, address: Address) -> None:
    assert parse_address(written) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("written", ["0.0.0.0:65536", ":99999", "[::1]:70000"])
def test_a_port_that_is_none_is_named(written: str) -> None:
    with pytest.raises(ValueError, match=r"has the port \d+; a port is a number up to 65535"):
        parse_address(written)


@pytest.mark.parametrize(
    "written",
    [
        "8080",
        8080,
        "0.0.0.0",
        "0.0.0.0:",
        "0.0.0.0:x",
        "0.0.0.0:-1",
        "::1:8080",
        "a b:1",
        "",
        None,
        "http://0.0.0.0:8080",
        "999.0.0.1:80",
        "[nonsense]:80",
        "a..b:80",
        "x" * 300 + ":80",
        "a:８０",
    ],
)
def test_what_is_no_address_is_named_with_the_right_forms(written: object) -> None:
    with pytest.raises(ValueError, match=r"write e\.g\. 0\.0\.0\.0:8080 or \[::1\]:8080") as raised:
        parse_address(written)
    assert str(raised.value).startswith(repr(written))


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a", False)]
)
def test_loopback_is_known(host: str, loopback: bool) -> None:
    assert Address(host, 80).loopback is loopback


URLS = [
    ("http://10.0.0.1:8000", "http://10.0.0.1:8000", "10.0.0.1:8000"),
    ("http://10.0.0.1:8000/", "http://10.0.0.1:8000", "10.0.0.1:8000"),
    ("10.0.0.1:8000", "http://10.0.0.1:8000", "10.0.0.1:8000"),
    ("gpu-1", "http://gpu-1", "gpu-1:80"),
    ("HTTP://GPU-1:80/", "http://gpu-1", "gpu-1:80"),
    ("https://llm.example/openai/", "https://llm.example/openai", "llm.example:443"),
    ("https://llm.example:8443/a/b", "https://llm.example:8443/a/b", "llm.example:8443"),
    ("http://[2001:DB8::1]:8000/v", "http://[2001:db8::1]:8000/v", "[2001:db8::1]:8000"),
    ("http://[::1]", "http://[::1]", "[::1]:80"),
    ("gpu_1.pool:8000", "http://gpu_1.pool:8000", "gpu_1.pool:8000"),
]


@pytest.mark.parametrize(("written", "canonical", "authority"), URLS)
def test_a_node_url_has_one_canonical_form(written: str, canonical: str, authority: str) -> None:
    url = parse_node_url(written)
    assert str(url) == canonical
    assert url.authority == authority
    assert parse_node_url(canonical) == url


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("ftp://h", "has the scheme 'ftp'; a node speaks http or https"),
        ("ws://h", "has the scheme 'ws'"),
        ("unix:///run/x", "has the scheme 'unix'"),
        ("http://h?x=1", "has a query or a fragment"),
        ("http://h#x", "has a query or a fragment"),
        ("http://h/?", "has a query or a fragment"),
        ("http://", "has no valid host name"),
        ("http://:80", "has no valid host name"),
        ("http://-h", "has no valid host name"),
        ("http://10.0.0.300", "has no valid host name"),
        ("http://[::1", "is not the URL of a node"),
        ("http://[zz]", "is not the URL of a node"),
        ("http://h:0", "has the port '0'"),
        ("http://h:99999", "has the port '99999'"),
        ("http://h:x", "has the port 'x'"),
        ("http://h:1:2", "has the port '1:2'"),
        ("http://a b", "has a space or a control character"),
        ("http://a\r\nX: y", "has a space or a control character"),
        ("http://h/pré", "has a path that is not ASCII; write such characters as %XX"),
        ("http://" + "a" * 64, "has no valid host name"),
        ("", "is not the URL of a node"),
        (8000, "is not the URL of a node"),
        (None, "is not the URL of a node"),
    ],
)
def test_what_is_no_node_url_says_why(written: object, reason: str) -> None:
    with pytest.raises(ValueError, match=r"write e\.g\. http://10\.0\.0\.1:8000") as raised:
        parse_node_url(written)
    assert str(raised.value).startswith(f"{written!r} {reason}")


@pytest.mark.parametrize("written", ["http://me:hunter2@h:80", "me:hunter2@h:80", "https://hunter2@h"])
def test_a_password_in_a_url_is_refused_and_not_repeated(written: str) -> None:
    with pytest.raises(ValueError, match="write it as api_key") as raised:
        parse_node_url(written)
    assert "hunter2" not in str(raised.value)


@given(st.text(max_size=30))
def test_no_text_makes_a_url_fail_in_another_way(text: str) -> None:
    try:
        url = parse_node_url(text)
    except ValueError:
        return
    assert parse_node_url(str(url)) == url


@pytest.mark.parametrize(
    ("written", "network"),
    [("10.0.0.0/8", "10.0.0.0/8"), ("192.0.2.7", "192.0.2.7/32"), ("2001:DB8::/32", "2001:db8::/32")],
)
def test_a_network(written: str, network: str) -> None:
    assert str(parse_network(written)) == network
    assert parse_network(parse_network(written)) == parse_network(written)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("10.0.0.1/8", "'10.0.0.1/8' names a host inside a network; write 10.0.0.0/8 for the network"),
        ("10.0.0.0/33", "'10.0.0.0/33' is not a network; write e.g. 10.0.0.0/8 or 192.0.2.7"),
        ("proxy", "'proxy' is not a network; write e.g. 10.0.0.0/8 or 192.0.2.7"),
        (10, "10 is not a network; write e.g. 10.0.0.0/8 or 192.0.2.7"),
    ],
)
def test_what_is_no_network_says_why(written: object, message: str) -> None:
    with pytest.raises(ValueError, match="write") as raised:
        parse_network(written)
    assert str(raised.value) == message
