"""TLS with clients and with nodes, Unix sockets, IPv6, and who says on whose behalf it connects (PROXY protocol)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import stat
from pathlib import Path

import pytest
import trustme

from steelyard.config.errors import ConfigError
from tests.blackbox.fakenode import Answer, stream
from tests.blackbox.wire import Client, Message
from tests.blackbox.world import JSON, Running, World, eventually, node_entry, post_chat, request


class Authority:
    """A certificate authority of the test's own, and its files."""

    def __init__(self, path: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._path = path
        self.file = str(path / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def files(self, *names: str) -> dict[str, str]:
        """A certificate for these names and its key, as the configuration has them."""
        issued = self._ca.issue_cert(*names)
        base = self._path / names[0].replace("*", "star")
        certificate, key = f"{base}.crt", f"{base}.key"
        Path(certificate).write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return {"certificate": certificate, "private_key": key}

    def server(self, *names: str, clients: bool = False) -> ssl.SSLContext:
        """The TLS of a node."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(*names).configure_cert(context)
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            self._ca.configure_trust(context)
        return context

    def client(self, protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.file)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def secure(
    world: World, running: Running, context: ssl.SSLContext, name: str = "localhost", before: bytes = b""
) -> Client:
    """A client of the gateway that speaks TLS, `before` which it says something else."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", running.port))
    if before:
        await loop.sock_sendall(sock, before)
    _, client = await loop.create_connection(Client, sock=sock, ssl=context, server_hostname=name)
    world.clients.append(client)
    return client


# -- clients


async def test_clients_over_tls_get_the_same_as_others(world: World, authority: Authority) -> None:
    node = await world.node()
    running = await world.serve(node, certificates=[authority.files("localhost")])
    client = await secure(world, running, authority.client(("h2", "http/1.1")))
    assert client.transport.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    assert client.transport.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
    for _ in range(3):
        assert (await client.ask(post_chat())).status == 200
    assert node.log[-1].get("x-forwarded-proto") == b"https"
    node.answer = stream("a", "b", "c", gap=0.01)
    assert (await client.ask(post_chat(stream=True))).complete
    large = bytes(range(256)) * 20_000
    node.answer = Answer(body=large)
    assert bytes((await client.ask(request("POST", "/upload", body=large))).body) == large
    assert bytes(node.log[-1].body) == large
    client.send(b"".join(request("GET", f"/{number}") for number in range(5)))
    node.answer = Answer(body=b"x")
    for _ in range(5):
        assert (await client.answer()).status == 200


async def test_a_broken_stream_is_broken_over_tls_too(world: World, authority: Authority) -> None:
    node = await world.node(Answer(body=bytes(1000), chunks=[bytes(500), bytes(500)], cut_after=1, framing="close"))
    running = await world.serve(node, certificates=[authority.files("localhost")])
    client = await secure(world, running, authority.client())
    node.answer = Answer(chunks=[bytes(500), bytes(500)], cut_after=1)
    client.send(request("GET", "/x"))
    answer = await client.answer()
    assert not answer.complete


async def test_a_client_over_tls_that_leaves_frees_its_node(world: World, authority: Authority) -> None:
    node = await world.node(Answer(hang="headers"))
    running = await world.serve(node, certificates=[authority.files("localhost")])
    for how in ("fin", "rst"):
        client = await secure(world, running, authority.client())
        client.send(post_chat())
        await eventually(lambda: node.executions and running.in_flight(node) == 1)
        getattr(client, how)()
        await eventually(lambda: running.in_flight(node) == 0)
        node.forget()


async def test_the_certificate_is_chosen_by_the_name_that_is_asked_for(world: World, authority: Authority) -> None:
    files = [authority.files("one.test"), authority.files("*.two.test", "two.test")]
    running = await world.serve(await world.node(), certificates=files)
    for name in ("one.test", "a.two.test", "two.test"):
        client = await secure(world, running, authority.client(), name)
        assert (await client.ask(post_chat())).status == 200
    with pytest.raises(ssl.SSLCertVerificationError):  # the first one is shown
        await secure(world, running, authority.client(), "other.test")


async def test_old_versions_of_tls_are_refused(world: World, authority: Authority) -> None:
    running = await world.serve(await world.node(), certificates=[authority.files("localhost")])
    old = authority.client()
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await secure(world, running, old)


async def test_certificates_are_changed_by_a_reload(world: World, authority: Authority, tmp_path: Path) -> None:
    files = authority.files("localhost")
    running = await world.serve(await world.node(), certificates=[files])
    kept = await secure(world, running, authority.client())
    assert (await kept.ask(post_chat())).status == 200
    second = Authority(tmp_path, "ca2")
    second.files("localhost")  # over the files of the first
    running.reload()
    fresh = await secure(world, running, second.client())
    assert (await fresh.ask(post_chat())).status == 200
    assert (await kept.ask(post_chat())).status == 200, "who is connected goes on"
    Path(files["certificate"]).write_text("nonsense")
    with pytest.raises(ConfigError, match="is no certificate in PEM form"):
        running.reload()
    assert (await (await secure(world, running, second.client())).ask(post_chat())).status == 200


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x00\x05nonsense", b""])
async def test_who_speaks_no_tls_is_let_go(world: World, authority: Authority, said: bytes) -> None:
    running = await world.serve(await world.node(), certificates=[authority.files("localhost")])
    client = await running.client()
    if said:
        client.send(said)
    else:
        client.fin()
    await client.until(lambda: client.closed)
    assert not client.buffer.startswith(b"HTTP")
    await eventually(lambda: running.gateway.counters.bad_requests == 1)
    listener = running.service._listener
    assert listener is not None
    await eventually(lambda: not listener.arriving)


async def test_who_is_not_done_with_tls_counts_as_a_connection(world: World, authority: Authority) -> None:
    running = await world.serve(await world.node(), certificates=[authority.files("localhost")], limits__connections=2)
    listener = running.service._listener
    assert listener is not None
    silent = [await running.client() for _ in range(2)]
    await eventually(lambda: listener.arriving == 2)
    refused = await running.client()
    await refused.gone()
    assert running.gateway.counters.connections_refused == 1
    for client in silent:
        client.fin()
    await eventually(lambda: not listener.arriving)


WRONG_FILES = [
    ("missing", "cannot be read: no such file or directory"),
    ("swapped", "is no certificate in PEM form"),
    ("other key", "is not the key of the certificate"),
    ("locked", "is no private key in PEM form without a password"),
]


@pytest.mark.parametrize(("what", "message"), WRONG_FILES)
async def test_files_that_cannot_be_used_are_named(
    world: World, authority: Authority, tmp_path: Path, what: str, message: str
) -> None:
    files = authority.files("localhost")
    if what == "missing":
        files["certificate"] = str(tmp_path / "none.pem")
    elif what == "swapped":
        files = {"certificate": files["private_key"], "private_key": files["certificate"]}
    elif what == "other key":
        files["private_key"] = authority.files("other.test")["private_key"]
    else:
        locked = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
        Path(files["private_key"]).write_bytes(locked)
    with pytest.raises(ConfigError, match=message) as raised:
        await world.serve(await world.node(), certificates=[files])
    assert str(tmp_path) in str(raised.value)
    assert "certificates" in str(raised.value)


# -- nodes


async def test_a_node_over_tls_with_an_authority_of_its_own(world: World, authority: Authority) -> None:
    node = await world.node(tls=authority.server("127.0.0.1"))
    running = await world.serve(node_entry(node, tls={"ca": authority.file}))
    for _ in range(3):
        assert (await running.ask(post_chat())).status == 200
    assert node.accepted <= 3, "its connections are used again"


async def test_a_node_is_asked_for_the_name_in_its_certificate(world: World, authority: Authority) -> None:
    node = await world.node(tls=authority.server("gpu-1.internal"))
    asked: list[str | None] = []
    assert node.tls is not None
    node.tls.sni_callback = lambda _connection, name, _context: asked.append(name)
    running = await world.serve(
        node_entry(node, tls={"ca": authority.file, "server_name": "gpu-1.internal"}),
    )
    assert (await running.ask(post_chat())).status == 200
    assert set(asked) == {"gpu-1.internal"}


@pytest.mark.parametrize("what", ["unknown authority", "other name"])
async def test_a_node_that_is_not_who_it_should_be_gets_nothing(
    world: World, authority: Authority, tmp_path: Path, what: str
) -> None:
    name = "127.0.0.1" if what == "unknown authority" else "other.test"
    node = await world.node(tls=authority.server(name))
    believed = authority if what == "other name" else Authority(tmp_path, "other")
    running = await world.serve(node_entry(node, tls={"ca": believed.file}), ready=False)
    health = running.service.health.health
    await eventually(lambda: any("certificate" in each.last_error.lower() for each in health.values()))
    assert (await running.ask(post_chat())).status == 503
    assert not node.log


async def test_a_node_that_asks_for_a_certificate_gets_one(world: World, authority: Authority) -> None:
    node = await world.node(tls=authority.server("127.0.0.1", clients=True))
    own = authority.files("gateway.test")
    running = await world.serve(node_entry(node, tls={"ca": authority.file, **own}))
    assert (await running.ask(post_chat())).status == 200
    running.reload(nodes=[node_entry(node, name="without", tls={"ca": authority.file})])
    await asyncio.sleep(0.5)
    assert (await running.ask(post_chat())).status == 503


async def test_a_node_s_files_are_checked_before_they_are_used(
    world: World, authority: Authority, tmp_path: Path
) -> None:
    node = await world.node(tls=authority.server("127.0.0.1"))
    wrong = node_entry(node, tls={"ca": str(tmp_path / "none.pem")})
    with pytest.raises(ConfigError, match=r"none\.pem: nodes\[0\]\.tls: cannot be read"):
        await world.serve(wrong)
    running = await world.serve(node_entry(node, tls={"ca": authority.file}))
    with pytest.raises(ConfigError):
        running.reload(nodes=[wrong])
    assert (await running.ask(post_chat())).status == 200


# -- other addresses


async def unix_client(world: World, path: Path) -> Client:
    _, client = await asyncio.get_running_loop().create_unix_connection(Client, str(path))
    world.clients.append(client)
    return client


async def ask_unix(world: World, path: Path, data: bytes) -> Message:
    return await (await unix_client(world, path)).ask(data)


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_unix_socket(world: World, tmp_path: Path, trusted: bool) -> None:
    path = tmp_path / "s.sock"
    node = await world.node()
    running = await world.serve(node, listen=f"unix:{path}", trust__unix=trusted)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    headers = {**JSON, "X-Forwarded-For": "192.0.2.1"}
    assert (await ask_unix(world, path, request("POST", "/task", headers, b"{}"))).status == 200
    expected = b"192.0.2.1, unix:" if trusted else b"unix:"
    assert node.log[0].get("x-forwarded-for") == expected
    assert (await running.line())["client"] == "unix:"
    await running.stop()
    assert not path.exists()


async def test_a_unix_socket_over_tls(world: World, authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    await world.serve(await world.node(), listen=f"unix:{path}", certificates=[authority.files("localhost")])
    _, client = await asyncio.get_running_loop().create_unix_connection(
        Client, str(path), ssl=authority.client(), server_hostname="localhost"
    )
    world.clients.append(client)
    assert (await client.ask(post_chat())).status == 200


async def test_a_unix_socket_that_is_left_over_is_replaced_and_one_in_use_is_not(world: World, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    node = await world.node()
    await world.serve(node, listen=f"unix:{path}")
    assert (await ask_unix(world, path, post_chat())).status == 200
    with pytest.raises(OSError, match="address already in use"):
        await world.serve(node, listen=f"unix:{path}")
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(OSError, match=r"cannot listen on unix:.*file exists"):
        await world.serve(node, listen=f"unix:{file}")
    assert file.read_text() == "precious"


async def test_ipv6(world: World) -> None:
    node = await world.node()
    running = await world.serve(node, listen="[::1]:0")
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(Client, "::1", running.port)
    world.clients.append(client)
    assert (await client.ask(post_chat())).status == 200
    assert node.log[0].get("x-forwarded-for") == b"::1"


# -- the PROXY protocol


def header(source: str = "", command: int = 1, more: bytes = b"", version: int = 2) -> bytes:
    """A PROXY header for a client; without one, of a balancer's own check."""
    if ":" in source:
        family, addresses = 0x21, socket.inet_pton(socket.AF_INET6, source) + bytes(16) + bytes(4)
    elif source:
        family, addresses = 0x11, socket.inet_aton(source) + bytes(4) + bytes(4)
    else:
        family, addresses = 0, b""
    block = addresses + more
    start = b"\r\n\r\n\x00\r\nQUIT\n" + bytes((version << 4 | command, family))
    return start + len(block).to_bytes(2, "big") + block


TRUST = {"trust__proxies": ["127.0.0.0/8"]}


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (header("192.0.2.7"), b"192.0.2.7"),
        (header("2001:db8::7"), b"2001:db8::7"),
        (header("::ffff:192.0.2.9"), b"192.0.2.9"),
        (header("192.0.2.7", more=b"\x04\x00\x03abc"), b"192.0.2.7"),
        (header("", command=0), b"127.0.0.1"),
        (header(""), b"127.0.0.1"),
        (b"", b"127.0.0.1"),
    ],
)
@pytest.mark.parametrize("tls", [False, True])
async def test_a_trusted_balancer_says_who_its_client_is(
    world: World, authority: Authority, said: bytes, seen: bytes, tls: bool
) -> None:
    node = await world.node()
    more = {"certificates": [authority.files("localhost")]} if tls else {}
    running = await world.serve(node, **TRUST, **more)
    if tls:
        client = await secure(world, running, authority.client(), before=said)
    else:
        client = await running.client()
        client.send(said)
    headers = {**JSON, "X-Forwarded-For": "1.2.3.4"}
    for _ in range(2):
        assert (await client.ask(request("POST", "/task", headers, b"{}"))).status == 200
    got = {received.get("x-forwarded-for") for received in node.log}
    # The word of the client itself does not count; that of the balancer, when it speaks for itself, does.
    assert got == ({b"1.2.3.4, 127.0.0.1"} if seen == b"127.0.0.1" else {seen})
    await eventually(lambda: len(running.lines()) == 2)
    assert {line["client"] for line in running.lines()} == {seen.decode()}


@pytest.mark.parametrize("tls", [False, True])
async def test_a_header_may_come_in_pieces(world: World, authority: Authority, tls: bool) -> None:
    node = await world.node()
    more = {"certificates": [authority.files("localhost")]} if tls else {}
    running = await world.serve(node, **TRUST, **more)
    said = header("192.0.2.7", more=bytes(50))
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", running.port))
    for start in range(0, len(said), 7):
        await loop.sock_sendall(sock, said[start : start + 7])
        await asyncio.sleep(0.002)
    context = authority.client() if tls else None
    _, client = await loop.create_connection(
        Client, sock=sock, ssl=context, server_hostname="localhost" if tls else None
    )
    world.clients.append(client)
    assert (await client.ask(post_chat())).status == 200
    assert node.log[0].get("x-forwarded-for") == b"192.0.2.7"


@pytest.mark.parametrize("tls", [False, True])
async def test_a_header_of_anybody_else_is_no_http(world: World, authority: Authority, tls: bool) -> None:
    node = await world.node()
    more = {"certificates": [authority.files("localhost")]} if tls else {}
    running = await world.serve(node, trust__proxies=["192.0.2.0/24"], **more)
    if tls:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await secure(world, running, authority.client(), before=header("10.0.0.1"))
    else:
        client = await running.client()
        client.send(header("10.0.0.1") + post_chat())
        assert (await client.answer()).status == 400
        await client.gone()
    assert not node.log


@pytest.mark.parametrize(
    "said", [header("192.0.2.7", version=1), header("192.0.2.7", command=5), header("192.0.2.7")[:20] + b"x" * 9]
)
@pytest.mark.parametrize("tls", [False, True])
async def test_a_header_that_makes_no_sense_ends_the_connection(
    world: World, authority: Authority, said: bytes, tls: bool
) -> None:
    if len(said) == 29:
        said = said[:14] + (4).to_bytes(2, "big") + said[16:]  # too short for its addresses
    more = {"certificates": [authority.files("localhost")]} if tls else {}
    running = await world.serve(await world.node(), **TRUST, **more)
    client = await running.client()
    client.send(said)
    await client.until(lambda: client.closed)
    assert not client.buffer
    assert running.gateway.counters.bad_requests == 1


async def test_a_balancer_that_says_nothing_is_given_up(world: World, authority: Authority) -> None:
    running = await world.serve(await world.node(), **TRUST, certificates=[authority.files("localhost")])
    from dataclasses import replace

    gateway = running.gateway
    gateway.settings = replace(gateway.settings, limits=replace(gateway.settings.limits, header_wait=0.2))
    client = await running.client()
    client.send(header("192.0.2.7")[:13])
    await client.until(lambda: client.closed)


async def test_a_header_before_which_the_balancer_leaves(world: World, authority: Authority) -> None:
    running = await world.serve(await world.node(), **TRUST, certificates=[authority.files("localhost")])
    for how in ("fin", "rst"):
        client = await running.client()
        client.send(header("192.0.2.7")[:13])
        await asyncio.sleep(0.05)
        getattr(client, how)()
        listener = running.service._listener
        assert listener is not None
        await eventually(lambda listener=listener: not listener.arriving)


async def test_what_the_gateway_answers_over_tls_is_logged_with_its_client(world: World, authority: Authority) -> None:
    running = await world.serve(await world.node(), **TRUST, certificates=[authority.files("localhost")])
    client = await secure(world, running, authority.client(), before=header("192.0.2.7"))
    answer = await client.ask(request("GET", "/v1/models"))
    assert {card["id"] for card in json.loads(bytes(answer.body))["data"]} == {"m"}
    with contextlib.suppress(ConnectionError):
        await client.ask(b"nonsense\r\n\r\n", "GET")
    await eventually(lambda: len(running.lines()) == 2)
    assert {line["client"] for line in running.lines()} == {"192.0.2.7"}
