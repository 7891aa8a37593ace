"""A wire tap between gateway and engine: what one of them sends goes on unchanged, and is kept."""

from __future__ import annotations

import socket
import threading


class WireTap:
    """Forwards TCP connections to a port of the loopback and keeps what comes back."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._answers: list[bytearray] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def clear(self) -> None:
        """Forget what was kept. Connections that are open go on, and count as new."""
        for answers in self._answers:
            answers.clear()

    def answers(self, part: bytes) -> list[bytes]:
        """What came back over each connection in which `part` occurs."""
        return [bytes(answers) for answers in self._answers if part in answers]

    def close(self) -> None:
        for sock in (self._listener, *self._open):
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            kept = bytearray()
            self._answers.append(kept)
            self._open += [near, far]
            threading.Thread(target=self._pass, args=(near, far, None), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, kept), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, kept: bytearray | None) -> None:
        try:
            while data := source.recv(65536):
                if kept is not None:
                    kept += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            # One side is gone: the other must see it, or it would wait for ever.
            for sock in (source, target):
                sock.close()
