"""Sends big JSON bodies one after the other, in a process of its own so that it does not disturb the meter.

``python -m bench.body_sender --port 8080 --bytes 16777216`` runs until SIGTERM and then prints one line of
JSON: bodies answered with 200, errors, and what the first error was.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import time

from bench import payloads
from bench.processes import LOOPBACK

# Between two bodies; the proxy and the meter must get some air, or the machine's two cores are what is measured.
PAUSE_SECONDS = 0.05
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)


class Ended(Exception):
    """SIGTERM came."""


def _end(_number: int, _frame: object) -> None:
    raise Ended


def send_one(client: socket.socket, head: bytes, body: bytes) -> None:
    """Send one body and read its answer to the end; raises `ConnectionError` unless it is a 200."""
    client.sendall(head)
    client.sendall(body)
    answer = b""
    while not _complete(answer):
        data = client.recv(65536)
        if not data:
            raise ConnectionError("closed before the end of the answer")
        answer += data
    if answer[9:12] != b"200":
        raise ConnectionError(f"answered {answer[:60]!r}")


def _complete(answer: bytes) -> bool:
    head, blank, body = answer.partition(b"\r\n\r\n")
    if not blank:
        return False
    length = _LENGTH.search(head)
    return len(body) >= int(length[1]) if length else body.endswith(payloads.CHUNKED_END)


def main() -> None:
    """Command line of the sender."""
    parser = argparse.ArgumentParser(prog="python -m bench.body_sender", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bytes", type=int, default=payloads.BIG_BODY_BYTES)
    options = parser.parse_args()
    body = payloads.chat_body(options.bytes)
    head = payloads.request_head(options.port, len(body))
    bodies = errors = 0
    said = ""
    signal.signal(signal.SIGTERM, _end)
    try:
        while True:
            try:
                with socket.create_connection((LOOPBACK, options.port), timeout=20) as client:
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    while True:
                        send_one(client, head, body)
                        bodies += 1
                        time.sleep(PAUSE_SECONDS)
            except OSError as error:
                errors += 1
                said = said or str(error)
                time.sleep(PAUSE_SECONDS)
    except Ended:
        print(json.dumps({"bodies": bodies, "errors": errors, "first_error": said}), flush=True)


if __name__ == "__main__":
    main()
