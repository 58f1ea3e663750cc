"""multipart/form-data with one file (RFC 7578), of a body that is there whole. Strict: what is odd is refused."""

from email.message import Message
from typing import Final

import msgspec

from core.errors import InvalidRequest

_MOST_PARTS: Final = 16
_HEAD_BYTES: Final = 4096
_FIELD_BYTES: Final = 4096
_BOUNDARY_LENGTH: Final = 200


class Form(msgspec.Struct):
    """Fields by name, and the file's name and bytes, where there is one."""

    fields: dict[str, str]
    filename: str | None = None
    file: bytes = b""


def parse_form(content_type: str, body: bytes) -> Form:
    """Raises InvalidRequest."""
    about = Message()
    about["content-type"] = content_type
    try:
        boundary = about.get_param("boundary")
    except ValueError:  # of absurd numbers of continuations
        boundary = None
    if about.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise InvalidRequest("A file is uploaded as multipart/form-data, with a boundary.")
    if not boundary.isascii() or not 0 < len(boundary) <= _BOUNDARY_LENGTH:
        raise InvalidRequest("The form's boundary is not one.")
    form = Form({})
    mark = b"--" + boundary.encode()
    if not body.startswith(mark):
        raise _cut()
    start = len(mark)
    for _ in range(_MOST_PARTS):
        if body.startswith(b"--", start):
            return form
        if not body.startswith(b"\r\n", start):
            raise _cut()
        head_end = body.find(b"\r\n\r\n", start, start + _HEAD_BYTES)
        end = body.find(b"\r\n" + mark, start)
        if head_end < 0 or end < head_end + 2:
            raise _cut()
        _add(form, body[start + 2 : head_end], body[head_end + 4 : end])
        start = end + 2 + len(mark)
    raise InvalidRequest(f"The form has more than {_MOST_PARTS} parts.")


def _add(form: Form, head: bytes, content: bytes) -> None:
    name, filename = _names(head)
    if name in form.fields or (name == "file" and form.filename is not None):
        raise InvalidRequest(f"The form has the field '{name[:64]}' twice.", param=name[:64])
    if name == "file":
        if filename is None:
            raise InvalidRequest("The field 'file' has to be a file, with its name.", param="file")
        form.filename, form.file = filename, content
        return
    if filename is not None or len(content) > _FIELD_BYTES:
        raise InvalidRequest(f"The field '{name[:64]}' is not a short text.", param=name[:64])
    try:
        form.fields[name] = content.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"The field '{name[:64]}' is not UTF-8.", param=name[:64]) from None


def _names(head: bytes) -> tuple[str, str | None]:
    """A part's name, and its file's."""
    try:
        lines = head.decode().split("\r\n")
    except UnicodeDecodeError:
        raise InvalidRequest("The head of a part of the form is not UTF-8.") from None
    for line in lines:
        header, _, value = line.partition(":")
        if header.strip().lower() != "content-disposition":
            continue
        disposition = Message()
        try:
            disposition["content-disposition"] = value.strip()
            name = disposition.get_param("name", header="content-disposition")
            filename = disposition.get_filename()
        except ValueError:
            break
        if disposition.get_content_disposition() != "form-data" or not isinstance(name, str) or not name:
            break
        return name, filename
    raise InvalidRequest("A part of the form does not say what it is.")


def _cut() -> InvalidRequest:
    return InvalidRequest("The form is not whole, or it is not what its Content-Type says.")
