"""HTTP/1.1 without I/O: bytes in, heads and body pieces out, and the bytes of heads to send.

Parsing and validation is llhttp's (httptools), in its strict mode. What is ours: which headers go on, which are read,
and how the framing of an answer is chosen for the client.
"""

from steelyard.proxy.http1.headers import HeaderTable, MessageError, without
from steelyard.proxy.http1.request import END, End, RequestHead, RequestReader
from steelyard.proxy.http1.response import ResponseHead, ResponseReader
from steelyard.proxy.http1.writing import CONTINUE, LAST_CHUNK, REASONS, bodiless, chunk, status_line

__all__ = [
    "CONTINUE",
    "END",
    "LAST_CHUNK",
    "REASONS",
    "End",
    "HeaderTable",
    "MessageError",
    "RequestHead",
    "RequestReader",
    "ResponseHead",
    "ResponseReader",
    "bodiless",
    "chunk",
    "status_line",
    "without",
]
