"""Forms with a file: the bytes as they are, and whatever is odd refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest
from gateway.relay.tuning.form import parse_form

TYPE = "multipart/form-data; boundary=XX"


def part(head: str, content: bytes = b"") -> bytes:
    return b"--XX\r\nContent-Disposition: " + head.encode() + b"\r\n\r\n" + content + b"\r\n"


FILE = part('form-data; name="file"; filename="a.jsonl"', b"one\r\n--X\n\0two")
PURPOSE = part('form-data; name="purpose"', b"fine-tune")


def test_fields_and_file_are_found() -> None:
    form = parse_form(TYPE, PURPOSE + FILE + b"--XX--\r\n")
    assert (form.fields, form.filename, form.file) == ({"purpose": "fine-tune"}, "a.jsonl", b"one\r\n--X\n\0two")
    assert parse_form('multipart/form-data; boundary="XX"', FILE + b"--XX--").filename == "a.jsonl"


@given(st.binary(max_size=200))
def test_a_files_bytes_are_not_touched(content: bytes) -> None:
    head = 'form-data; name="file"; filename="a"'
    if b"\r\n--XX" not in b"\r\n" + content:
        assert parse_form(TYPE, part(head, content) + b"--XX--").file == content


@pytest.mark.parametrize(
    "filename", ['filename="../a"', 'filename="C:\\\\a"', "filename*=UTF-8''%E4%BD%A0", 'filename="你.jsonl"']
)
def test_names_are_taken_as_they_are(filename: str) -> None:
    assert parse_form(TYPE, part(f'form-data; name="file"; {filename}', b"x") + b"--XX--").filename


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("", FILE + b"--XX--"),
        ("application/json", b"{}"),
        ("multipart/form-data", FILE + b"--XX--"),
        ("multipart/form-data; boundary=", FILE + b"--XX--"),
        ("multipart/form-data; boundary=" + "x" * 201, FILE + b"--XX--"),
        (f"multipart/form-data; boundary*{'9' * 5000}*=XX", FILE + b"--XX--"),
        ("multipart/form-data; boundary=YY", FILE + b"--XX--"),
        (TYPE, b""),
        (TYPE, b"--XX"),
        (TYPE, FILE),
        (TYPE, FILE[:-10]),
        (TYPE, b"--XX\r\n\r\n"),
        (TYPE, b"junk" + FILE + b"--XX--"),
        (TYPE, FILE + FILE + b"--XX--"),
        (TYPE, PURPOSE + PURPOSE + b"--XX--"),
        (TYPE, part("form-data") + b"--XX--"),
        (TYPE, part('attachment; name="file"; filename="a"') + b"--XX--"),
        (TYPE, part('form-data; name="file"', b"text") + b"--XX--"),
        (TYPE, part('form-data; name="purpose"; filename="a"') + b"--XX--"),
        (TYPE, part('form-data; name="purpose"', b"x" * 5000) + b"--XX--"),
        (TYPE, part('form-data; name="purpose"', b"\xff") + b"--XX--"),
        (TYPE, b"--XX\r\n\xff\xfe: \r\n\r\n\r\n--XX--"),
        (TYPE, b"--XX\r\nA: " + b"x" * 5000 + b"\r\n\r\n\r\n--XX--"),
        (TYPE, b"".join(part(f'form-data; name="f{n}"') for n in range(17)) + b"--XX--"),
    ],
)
def test_what_is_odd_is_refused(content_type: str, body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_form(content_type, body)


@given(st.text(max_size=60), st.binary(max_size=200))
def test_whatever_is_sent_is_read_or_refused(more: str, body: bytes) -> None:
    for content_type, sent in ((f"{TYPE}{more}", b"--XX\r\n" + body), (more, body), (TYPE, b"--XX" + body + b"--XX--")):
        try:
            parse_form(content_type, sent)
        except InvalidRequest:
            continue
