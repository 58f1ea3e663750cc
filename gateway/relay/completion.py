"""What the gateway reads of an engine's answer, and the two things that it changes.

The bytes pass as they came, except: the model name becomes the one that the client used, and the
usage chunk that the gateway asked for, and not the client, is taken out of a stream. Every event is
decoded into a few fields (half a microsecond with msgspec), never encoded again.
"""

import re
from typing import Final, NamedTuple

import msgspec

from gateway.relay.members import DuplicateMember, MalformedJson, apply_edits, scan_members
from gateway.relay.pieces import Pieces
from gateway.relay.plan import Api, Usage, UsageSource
from gateway.relay.sse import DEFAULT_EVENT_BYTES, EventSplitter, EventTooLarge, event_fields, with_data
from gateway.relay.tool_calls import CallIndexes

_MOST_TOKENS: Final = 2**31 - 1  # of one request: more is no count, and no ledger could keep it
_NOTHING: Final = frozenset({b"", b"null", b'""', b"[]", b"{}"})
_ABSENT: Final = msgspec.Raw(b"")
_WITH_CHOICES: Final = frozenset({Api.CHAT, Api.COMPLETIONS})
_model_member = re.compile(rb'"model"[ \t]*:[ \t]*')


class _Choice(msgspec.Struct, gc=False):
    delta: dict[str, msgspec.Raw] | None = None
    text: msgspec.Raw = _ABSENT
    finish_reason: msgspec.Raw = _ABSENT


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT
    model: msgspec.Raw = _ABSENT


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _UsageFields(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


_chunks = msgspec.json.Decoder(_Chunk)
_any_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_usages = msgspec.json.Decoder(_UsageFields)
_strings = msgspec.json.Decoder(str)


def read_usage(raw: bytes, *, nothing_comes_out: bool = False) -> Usage | None:
    """Token counts from an OpenAI `usage` object; None where it says nothing that can be used.

    `nothing_comes_out`: the total is what went in, as rerankers say it.
    """
    try:
        fields = _usages.decode(raw)
    except msgspec.DecodeError:
        return None
    prompt_tokens = fields.prompt_tokens
    if nothing_comes_out and prompt_tokens is None:
        prompt_tokens = fields.total_tokens
    counts = (prompt_tokens, fields.completion_tokens)
    if counts == (None, None) or any(count is not None and not 0 <= count <= _MOST_TOKENS for count in counts):
        return None
    details = fields.prompt_tokens_details
    return Usage(
        input_tokens=prompt_tokens,
        cached_tokens=details.cached_tokens if details else None,
        output_tokens=fields.completion_tokens,
        source=UsageSource.ENGINE,
    )


class CompletionStream:
    """A streamed answer on its way to the client.

    Until the first content, events are held back (comments are not): if the engine fails before it,
    another can be asked and the client never knows. `take` returns what may be told now.
    """

    __slots__ = (
        "_calls",
        "_client_name",
        "_drop_usage",
        "_held",
        "_held_bytes",
        "_identify",
        "_limit",
        "_needle",
        "_pieces",
        "_replacement",
        "_splitter",
        "committed",
        "content_events",
        "done",
        "ended",
        "engine_request_id",
        "error",
        "finish_reasons",
        "progress",
        "usage",
    )

    def __init__(self, *, client_model: str, drop_usage: bool, event_bytes: int = DEFAULT_EVENT_BYTES) -> None:
        self.committed = False  # content (or the end) has been handed out
        self.content_events = 0
        self.progress = 0  # events that are more than a heartbeat
        self.finish_reasons = 0  # choices that have said why they ended
        self.done = False  # [DONE] has come
        self.ended = False  # the engine has ended the body
        self.error: bytes | None = None  # the data of the engine's error event
        self.usage: Usage | None = None
        self.engine_request_id: str | None = None
        self._calls: CallIndexes | None = None  # once there are calls
        self._client_name = msgspec.json.encode(client_model)
        self._drop_usage = drop_usage
        self._splitter = EventSplitter(event_bytes)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._limit = event_bytes
        self._identify = True
        self._pieces = Pieces()
        self._needle = b""
        self._replacement = b""

    @property
    def over(self) -> bool:
        """Nothing more of it is to be read."""
        return self.done or self.ended or self.error is not None

    def piece(self, data: bytes) -> bytes | None:
        """What the client is told of `data`, if it is just the next pieces of text (see Pieces); else `take` it."""
        if self._splitter.rest or not self.committed:
            return None
        told = self._pieces.told(data)
        if told is not None:
            self.content_events += 1
            self.progress += 1
            return told
        run = self._pieces.told_run(data)
        if run is None:
            return None
        told, count = run
        self.content_events += count
        self.progress += count
        return told

    def take(self, data: bytes) -> list[bytes]:
        """Take bytes from the engine; returns whole events for the client, none if there are none yet.

        Stops at [DONE] (included, the last one) and before an error event (`error` then holds its data).
        Raises EventTooLarge.
        """
        out: list[bytes] = []
        for event in self._splitter.feed(data):
            self._take(event, out)
            if self.done or self.error is not None:
                break
        return out

    def take_rest(self) -> list[bytes]:
        """The engine has ended the body: what may still be told of it.

        An unfinished event is taken as whole when it can be understood (some engines leave out the
        last blank line), else it is dropped: half an event would spoil whatever follows it.
        """
        out: list[bytes] = []
        rest = self._splitter.rest
        if not self.over and _is_whole(rest):
            self._take(rest + (b"\n" if rest.endswith((b"\n", b"\r")) else b"\n\n"), out)
        if self.finish_reasons and not self.committed:
            self._commit(out)
        self.ended = True
        return out

    def _take(self, event: bytes, out: list[bytes]) -> None:
        if self.committed and (told := self._pieces.told(event)) is not None:
            self.content_events += 1
            self.progress += 1
            out.append(told)
            return
        if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
            name, data = b"", event[6:-2]
        else:
            name, fields_data = event_fields(event)
            if fields_data is None:  # a comment, a retry time: no content, may pass at any time
                out.append(event)
                return
            data = fields_data
        if data == b"[DONE]":
            self.done = True
            self._commit(out)
            out.append(event)
            return
        try:
            chunk = _chunks.decode(data)
        except (msgspec.DecodeError, RecursionError):  # not ours to judge, but an error in it is one
            chunk = _Chunk(error=_member(data, "error"))
        if name == b"error" or (chunk.error is not _ABSENT and bytes(chunk.error) not in _NOTHING):
            self.error = data
            return
        if self._take_fields(chunk, data):
            return
        came = event
        for choice in chunk.choices or ():
            if choice.delta is not None and "tool_calls" in choice.delta:
                self._calls = self._calls or CallIndexes()
                event, data = self._calls.put_right(event, data)
                break
        if chunk.model is not _ABSENT and (model := bytes(chunk.model)) != self._client_name:
            event = self._echo_model(event, data, model)
        if self.committed:
            out.append(event)
            if not name and _is_plain_piece(chunk):
                self._pieces.learn(came, event)
        elif self.content_events or self.finish_reasons:
            self._commit(out)
            out.append(event)
        else:
            self._hold(event)

    def _take_fields(self, chunk: _Chunk, data: bytes) -> bool:
        """Note what the chunk says; True when it is to be taken out."""
        choices = chunk.choices
        if choices:
            for choice in choices:
                if _has_content(choice):
                    self.content_events += 1
                    self.progress += 1
                if choice.finish_reason is not _ABSENT and bytes(choice.finish_reason) not in _NOTHING:
                    self.finish_reasons += 1
                    self.progress += 1
        if chunk.usage is not _ABSENT and (usage := bytes(chunk.usage)) not in _NOTHING:
            self.usage = read_usage(usage) or self.usage
            self.progress += 1
            if self._drop_usage and choices is not None and not choices:
                return True
        if self._identify:
            self._identify = False
            self.engine_request_id = _text(bytes(_member(data, "id")))
        return False

    def _hold(self, event: bytes) -> None:
        self._held.append(event)
        self._held_bytes += len(event)
        if self._held_bytes > self._limit:
            raise EventTooLarge(f"more than {self._limit} bytes of events without content")

    def _commit(self, out: list[bytes]) -> None:
        self.committed = True
        out.extend(self._held)
        self._held.clear()

    def _echo_model(self, event: bytes, data: bytes, engine_name: bytes) -> bytes:
        if event.count(b'"model"') == 1:
            if self._needle and self._needle in event:
                return event.replace(self._needle, self._replacement, 1)
            member = _model_member.search(event)
            if member is not None and event.startswith(engine_name, member.end()):
                self._needle = member[0] + engine_name
                self._replacement = member[0] + self._client_name
                return event.replace(self._needle, self._replacement, 1)
        edited = _rename(data, engine_name, self._client_name)
        return event.replace(data, edited, 1) if data in event else with_data(event, edited)


def _member(data: bytes, name: str) -> msgspec.Raw:
    """A top-level member of what is perhaps a JSON object."""
    try:
        return _any_members.decode(data).get(name, _ABSENT)
    except (msgspec.DecodeError, RecursionError):
        return _ABSENT


def _is_whole(event: bytes) -> bool:
    data = event_fields(event)[1]
    if data is None:
        return False
    try:
        _chunks.decode(data)
    except msgspec.DecodeError:
        return data == b"[DONE]"
    return True


def _has_content(choice: _Choice) -> bool:
    if choice.delta is not None:
        for name, value in choice.delta.items():
            if name != "role" and bytes(value) not in _NOTHING:
                return True
    return choice.text is not _ABSENT and bytes(choice.text) not in _NOTHING


def _is_plain_piece(chunk: _Chunk) -> bool:
    """The chunk is a piece of one choice's text, and says nothing else that is looked at."""
    choices = chunk.choices
    if choices is None or len(choices) != 1 or bytes(chunk.usage) not in _NOTHING:
        return False
    choice = choices[0]
    if bytes(choice.finish_reason) not in _NOTHING:
        return False
    if choice.delta is None:
        return bytes(choice.text) not in _NOTHING
    others = [value for member, value in choice.delta.items() if member not in ("role", "content")]
    return bytes(choice.delta.get("content", _ABSENT)) not in _NOTHING and all(bytes(v) in _NOTHING for v in others)


class WholeAnswer(NamedTuple):
    """A non-streamed answer: the bytes for the client and what they say."""

    body: bytes
    usage: Usage | None
    engine_request_id: str | None
    content_bytes: int  # of all choices; for an estimate where there is no usage
    error: bytes | None  # the answer is an error although its status did not say so


class _Whole(msgspec.Struct, gc=False):
    id: msgspec.Raw = _ABSENT
    model: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT
    choices: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


_wholes = msgspec.json.Decoder(_Whole)


def read_whole(api: Api, body: bytes, *, client_model: str) -> WholeAnswer:
    """Read a non-streamed answer. Raises MalformedJson when it is not a JSON object."""
    try:
        whole = _wholes.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedJson(str(error)) from error
    said = bytes(whole.usage)
    usage = read_usage(said, nothing_comes_out=api not in _WITH_CHOICES) if said else None
    identity = bytes(whole.id)
    return WholeAnswer(
        body=_rename(body, bytes(whole.model), msgspec.json.encode(client_model)),
        usage=usage,
        engine_request_id=_text(identity),
        content_bytes=0 if usage is not None or api not in _WITH_CHOICES else _content_bytes(bytes(whole.choices)),
        error=body if bytes(whole.error) not in _NOTHING else None,
    )


def _rename(body: bytes, engine_name: bytes, client_name: bytes) -> bytes:
    """`body` with the value of its top-level `model` replaced; both names are JSON."""
    if not engine_name or engine_name == client_name:
        return body
    if body.count(b'"model"') == 1:  # then it is the top-level one: a quote inside a string has a backslash
        member = _model_member.search(body)
        if member is not None and body.startswith(engine_name, member.end()):
            return body[: member.end()] + client_name + body[member.end() + len(engine_name) :]
    try:
        start, end = scan_members(body)["model"][2:]
    except (DuplicateMember, MalformedJson):
        return body
    return apply_edits(body, [(start, end, client_name)])


def _text(value: bytes) -> str | None:
    try:
        return _strings.decode(value)
    except msgspec.DecodeError:
        return None


class _WholeChoice(msgspec.Struct):
    message: dict[str, msgspec.Raw] | None = None
    text: msgspec.Raw = _ABSENT


_whole_choices = msgspec.json.Decoder(list[_WholeChoice])


def _content_bytes(choices: bytes) -> int:
    try:
        decoded = _whole_choices.decode(choices)
    except msgspec.DecodeError:
        return 0
    return sum(
        len(memoryview(choice.text))
        + sum(len(memoryview(value)) for name, value in (choice.message or {}).items() if name != "role")
        for choice in decoded
    )
