"""Forms with a file: multipart/form-data in pieces, transcription and image edits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.core.work import Work
from steelyard.dialects import MalformedBody, recognise
from steelyard.dialects.multipart import LIMIT, MOST_PARTS, MultipartFields, Part

PATH = "/v1/audio/transcriptions"
TYPE = b"multipart/form-data; boundary=xyz"


def part(name: str, content: bytes, extra: str = "") -> bytes:
    return f'--xyz\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode() + content + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--xyz--\r\n"


def read(body: bytes, content_type: bytes = TYPE, path: str = PATH) -> Work:
    return recognise("POST", path).read(body, content_type, path.encode())


def parse(body: bytes, step: int, content_type: bytes = TYPE) -> list[Part]:
    fields = MultipartFields(content_type)
    for start in range(0, len(body), step):
        fields.feed(body[start : start + step])
    return fields.close()


def wav(seconds: float, rate: int = 32_000, before: bytes = b"", size: int | None = None) -> bytes:
    length = int(seconds * rate)
    fmt = b"fmt " + (16).to_bytes(4, "little") + b"\x01\0\x01\0" + (16_000).to_bytes(4, "little")
    fmt += rate.to_bytes(4, "little") + b"\x02\0\x10\0"
    data = b"data" + (length if size is None else size).to_bytes(4, "little") + b"\0" * length
    content = b"WAVE" + fmt + before + data
    return b"RIFF" + len(content).to_bytes(4, "little") + content


FILE = part("file", wav(2), '; filename="a.wav"')


@pytest.mark.parametrize("order", [0, 1])
def test_the_fields_stand_before_or_after_the_file(order: int) -> None:
    fields = part("model", b"whisper") + part("stream", b"true") + part("user", b"u")
    work = read(form(FILE, fields) if order else form(fields, FILE))
    assert (work.dialect, work.operation, work.model, work.asked_model) == ("openai", "transcription", *["whisper"] * 2)
    assert (work.stream, work.repeatable, work.audio_seconds) == (True, True, 2.0)
    assert dict(work.session_fields) == {"user": "u"}
    assert work.body_bytes == len(form(fields, FILE))


def test_a_form_without_fields_is_for_the_node_to_judge() -> None:
    work = read(form())
    assert (work.model, work.stream, work.audio_seconds) == (None, False, 0.0)


BOUNDARIES = [
    b"multipart/form-data; boundary=xyz",
    b'multipart/form-data; boundary="xyz"',
    b"Multipart/Form-Data;charset=utf-8 ; BOUNDARY=xyz",
    b'multipart/form-data; a="b;boundary=no"; boundary=xyz; c=d',
]


@pytest.mark.parametrize("content_type", BOUNDARIES)
def test_boundaries(content_type: bytes) -> None:
    assert read(form(part("model", b"m")), content_type).model == "m"


@pytest.mark.parametrize(
    ("content_type", "message"),
    [
        (b"", "content-type must be multipart/form-data, not absent"),
        (b"application/json", "content-type must be multipart/form-data, not application/json"),
        (b"multipart/form-data", "content-type multipart/form-data has no boundary"),
        (b'multipart/form-data; boundary=""', "content-type multipart/form-data has no boundary"),
        (
            b"multipart/form-data; boundary=" + b"b" * 71,
            "the boundary of multipart/form-data is longer than 70 characters",
        ),
    ],
)
def test_what_cannot_be_a_form(content_type: bytes, message: str) -> None:
    with pytest.raises(MalformedBody) as caught:
        read(form(), content_type)
    assert str(caught.value) == message
    with pytest.raises(MalformedBody):
        recognise("POST", PATH).scanner(content_type)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "multipart body does not contain its boundary b'xyz'"),
        (b"hello", "multipart body does not contain its boundary b'xyz'"),
        (b"--xyz", "multipart body does not contain its boundary b'xyz'"),
        (b"--xyz\r\n", "multipart body ends before its closing boundary"),
        (part("model", b"m"), "multipart body ends before its closing boundary"),
        (part("model", b"m") + b"--xyz", "multipart body ends before its closing boundary"),
        (form(b"--xyz\r\nA: b\r\n\r\nc\r\n"), "multipart body is malformed: a part has no Content-Disposition: "
         "form-data with a name (byte 7)"),
        (form(b"--xyz\r\n\r\nc\r\n"), "multipart body is malformed: a part has no Content-Disposition: "
         "form-data with a name (byte 7)"),
        (form(part("stream", b"maybe")), "stream must be true or false, not 'maybe'"),
        (form(part("model", b"\xff")), "form field model is not valid UTF-8 (byte 0 of it)"),
        (form(part("model", b"m" * (LIMIT + 1))), "model is longer than 256 characters"),
        (form(part("user", b"u" * 257)), "user is longer than 256 characters"),
        (form(part("stream", b" " * (LIMIT + 1))), "form field stream is longer than 4096 bytes"),
        (form(b"--xyz\r\nX: " + b"y" * 9000 + b"\r\n\r\n"), "multipart body is malformed: the headers of a part are "
         "longer than 8192 bytes (byte 7)"),
        (form(part("a", b"") * (MOST_PARTS + 1)), "multipart body is malformed: more than 1000 parts (byte 53007)"),
    ],
)  # fmt: skip
def test_malformed_forms(body: bytes, message: str) -> None:
    with pytest.raises(MalformedBody) as caught:
        read(body)
    assert str(caught.value) == message


def test_what_looks_like_the_boundary_inside_a_file_is_content() -> None:
    content = b"a\r\n--xy\r\n--xyzz\r\n--xyz-\r\n\r\n--\r\n --xyz\r\nb--xyz\r\n"
    for step in (1, 2, 3, 1000):
        parts = parse(form(part("file", content), part("model", b"m")), step)
        assert [(found.name, found.start) for found in parts] == [("file", content), ("model", b"m")]


def test_what_looks_like_the_boundary_may_not_come_without_end() -> None:
    with pytest.raises(MalformedBody, match="too much that looks like the boundary"):
        read(form(part("file", b"\r\n--xyz!" * (MOST_PARTS + 1))))


def test_headers_need_not_be_utf_8() -> None:
    body = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="\xe9.wav"\r\n\r\n\r\n--xyz--'
    assert [found.filename for found in parse(body, 3)] == ["\xe9.wav"]


def test_booleans() -> None:
    for text, expected in ((b"true", True), (b"1", True), (b"False", False), (b"", False)):
        assert read(form(part("stream", text))).stream is expected


def test_preamble_epilogue_and_padding() -> None:
    body = b"preamble\r\n--xyz \t\r\n" + part("model", b"m")[7:] + b"--xyz--\r\n--xyz\r\nnonsense"
    for step in (1, 5, 1000):
        assert [found.start for found in parse(body, step)] == [b"m"]


def test_names_and_file_names() -> None:
    heads = [
        ('form-data; name="file"; filename="a \\"b\\" c:\\\\d.wav"', "file", 'a "b" c:\\d.wav'),
        ("form-data; name=file; filename=a.wav", "file", "a.wav"),
        ('Form-Data; NAME="f;name=no"', "f;name=no", None),
        ('form-data; name=""', "", None),
    ]
    for head, name, filename in heads:
        body = (
            b"--xyz\r\nX: y\r\ncontent-disposition: "
            + head.encode()
            + b"\r\nContent-Type: Audio/WAV\r\n\r\n\r\n--xyz--"
        )
        (found,) = parse(body, 1)
        assert (found.name, found.filename, found.content_type, found.size) == (name, filename, "audio/wav", 0)


def test_of_a_file_only_the_start_is_kept() -> None:
    content = bytes(range(256)) * 4096
    (found,) = parse(form(part("file", content)), 65536)
    assert (found.start, found.size) == (content[:LIMIT], len(content))
    body = form(part("file", content))
    assert body[found.offset : found.offset + found.size] == content


pieces = st.lists(
    st.sampled_from([b"\r\n--xyz", b"\r\n", b"--", b"--xyz--", b"-", b"\r", b"x", b" ", part("a", b"b"), b"\0" * 9]),
    max_size=12,
)


@given(st.lists(pieces, max_size=3), st.integers(1, 40))
def test_cutting_changes_nothing(contents: list[list[bytes]], step: int) -> None:
    body = form(*(part("f", b"".join(content)) for content in contents))

    def outcome(step: int) -> object:
        try:
            return parse(body, step)
        except MalformedBody as error:
            return str(error)

    assert outcome(step) == outcome(1 << 20)


AUDIO = [
    (wav(3.5), "a.wav", 3.5),
    (wav(2, rate=16_000), "a.wav", 2.0),
    (wav(2, before=b"LIST" + (3).to_bytes(4, "little") + b"abc\0"), "a.wav", 2.0),
    (wav(2, size=0), "", 2.0),
    (wav(2, size=0xFFFFFFFF), "", 2.0),
    (wav(2, size=99_999_999), "", 2.0),
    (b"RIFF\0\0\0\0WAVE", "", 0.0),
    (
        b"fLaC\0\0\0\x22" + b"\0" * 10 + ((16_000 << 44) | (15 << 36) | 48_000).to_bytes(8, "big") + b"\0" * 2000,
        "",
        3.0,
    ),
    (b"fLaC\0\0\0\x22" + b"\0" * 10 + ((16_000 << 44) | (1 << 35)).to_bytes(8, "big") + b"\0" * 1974, "", 4.0),
    (wav(500, rate=1), "", 1.0),
    (b"fLaC" + b"\0" * 3, "", 7 / 64_000),
    (b"OggS" + b"\0" * 7996, "", 2.0),
    (b"\x1a\x45\xdf\xa3" + b"\0" * 3996, "", 1.0),
    (b"ID3" + b"\0" * 15_997, "a.mp3", 1.0),
    (b"\0" * 64_000, "speech.PCM", 2.0),
    (b"\0" * 64_000, "unknown", 4.0),
    (b"", "", 0.0),
]


@pytest.mark.parametrize(("content", "filename", "expected"), AUDIO)
def test_seconds_of_audio(content: bytes, filename: str, expected: float) -> None:
    work = read(form(part("file", content, f'; filename="{filename}"')))
    assert work.audio_seconds == pytest.approx(expected, rel=0.001)


def test_image_edits() -> None:
    fields = part("size", b"512x768") + part("n", b"2") + part("model", b"m")
    work = read(form(part("image", b"png"), fields), path="/v1/images/edits")
    assert (work.operation, work.width, work.height, work.images, work.model) == ("image_edits", 512, 768, 2, "m")
    assert read(form(part("n", b" ")), path="/v1/images/edits").images == 1
    with pytest.raises(MalformedBody, match="n must be an integer, not 'two'"):
        read(form(part("n", b"two")), path="/v1/images/edits")


def test_an_alias_is_replaced_in_the_form() -> None:
    operation = recognise("POST", PATH)
    body = form(FILE, part("model", b"alias"), part("user", b"alias"))
    assert operation.replace_model(body, TYPE, "whisper-large") == form(
        FILE, part("model", b"whisper-large"), part("user", b"alias")
    )
    assert operation.replace_model(form(FILE), TYPE, "m") == form(FILE)
