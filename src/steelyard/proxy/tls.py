"""TLS: the gateway's own certificates, and whom to believe among nodes."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from steelyard.core.node import NodeTLS

PROTOCOLS: Final = ["http/1.1"]
"""What is agreed on within TLS (ALPN)."""


class CertificateFiles(NamedTuple):
    """A certificate chain and its private key, PEM."""

    certificate: str
    private_key: str


class TLSFileError(Exception):
    """A file that is needed for TLS cannot be used."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


def server_context(certificates: Sequence[CertificateFiles]) -> ssl.SSLContext:
    """The TLS of a listener. A client gets the certificate for the name that it asks for (SNI), else the first.

    Raises TLSFileError.
    """
    contexts = [_own_context(files) for files in certificates]
    if len(contexts) > 1:
        by_name: dict[str, ssl.SSLContext] = {}
        for files, context in zip(certificates, contexts, strict=True):
            for name in names_of(files, context):
                by_name.setdefault(name, context)

        def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
            if name is not None:
                name = name.lower()
                chosen = by_name.get(name) or by_name.get("*." + name.partition(".")[2])
                if chosen is not None:
                    connection.context = chosen

        contexts[0].sni_callback = choose
    return contexts[0]


def _own_context(files: CertificateFiles) -> ssl.SSLContext:
    context = _modern(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    _load_chain(context, files)
    return context


def _load_chain(context: ssl.SSLContext, files: CertificateFiles) -> None:
    for path in files:
        _check_readable(path)
    try:
        # A key that needs a password must not ask for it at the terminal.
        context.load_cert_chain(*files, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TLSFileError(files.private_key, f"is not the key of the certificate {files.certificate}") from None
        if not _is_certificate(files.certificate):
            raise TLSFileError(files.certificate, "is no certificate in PEM form") from None
        raise TLSFileError(files.private_key, "is no private key in PEM form without a password") from None


def _check_readable(path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise TLSFileError(path, f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    except ValueError:
        raise TLSFileError(repr(path), "is not a file name") from None


def _is_certificate(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        return False
    return True


def names_of(files: CertificateFiles, context: ssl.SSLContext) -> list[str]:
    """The DNS names that a certificate is for, in lower case.

    Read by a handshake with ourselves, in memory, in which it is the only authority that is believed: Python's `ssl`
    shows the names of no other certificate. Raises TLSFileError when it is not valid now.
    """
    believing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    believing.check_hostname = False
    believing.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    believing.load_verify_locations(files.certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = believing.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(10):
            for side in (client, server):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise TLSFileError(files.certificate, f"is not valid: {error.verify_message}") from None
    found: Any = (client.getpeercert() or {}).get("subjectAltName", ())
    return [value.lower() for kind, value in found if kind == "DNS"]


def node_context(tls: NodeTLS | None) -> ssl.SSLContext:
    """The TLS towards a node. Raises TLSFileError."""
    # An authority of its own is believed instead of those of the system, not besides them.
    authorities = None if tls is None or tls.ca is None else _pem(tls.ca)
    context = _modern(ssl.create_default_context(cadata=authorities))
    if tls is not None and tls.certificate is not None and tls.private_key is not None:
        _load_chain(context, CertificateFiles(tls.certificate, tls.private_key))
    return context


def _modern(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(PROTOCOLS)
    return context


def _pem(path: str) -> str:
    """The certificates in a file. Raises TLSFileError."""
    _check_readable(path)
    with open(path, encoding="ascii", errors="replace") as file:
        text = file.read()
    if not text:
        raise TLSFileError(path, "is empty")
    try:
        ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError):
        raise TLSFileError(path, "holds no certificate in PEM form") from None
    return text
