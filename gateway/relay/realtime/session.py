"""A realtime conversation, kept in memory as long as its connection: what each event of a client's does to it. Pure.

Source: OpenAI's Realtime API reference (its general availability form), as far as text goes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar, Final

import msgspec

from core.errors import GatehouseError, InvalidRequest
from gateway.relay.realtime.items import Item, NewId, chat_messages, read_item
from gateway.relay.realtime.options import Options, check_modalities
from gateway.relay.realtime.response import Event, Response

_SESSION_MEMBERS: Final = frozenset({"type", "model", "output_modalities"})
_RESPONSE_MEMBERS: Final = frozenset({"conversation", "input", "metadata", "output_modalities"})
_ROOT: Final = "root"
_EVENT_ID_CHARACTERS: Final = 512


class Phase(Enum):
    """What a conversation is doing."""

    IDLE = auto()
    RESPONDING = auto()
    CANCELLING = auto()  # taken back by the client; the end of the response is on its way


_ALWAYS: Final = frozenset(Phase)
CLIENT_EVENTS: Final[Mapping[str, frozenset[Phase]]] = {
    "session.update": _ALWAYS,
    "conversation.item.create": _ALWAYS,
    "conversation.item.retrieve": _ALWAYS,
    "conversation.item.delete": _ALWAYS,
    "response.create": frozenset({Phase.IDLE}),
    "response.cancel": frozenset({Phase.RESPONDING}),
}
"""What clients may say, and when."""


class UnknownEvent(InvalidRequest):
    code: ClassVar[str] = "unknown_event"


class BrokenEvent(InvalidRequest):
    code: ClassVar[str] = "invalid_event"
    default_message: ClassVar[str] = "Expected an event: one JSON object in a text frame."


class ResponseUnderWay(InvalidRequest):
    code: ClassVar[str] = "conversation_already_has_active_response"
    default_message: ClassVar[str] = "A response is under way: wait for its response.done, or cancel it."


class NothingToCancel(InvalidRequest):
    code: ClassVar[str] = "response_cancel_not_active"
    default_message: ClassVar[str] = "There is no response under way that could be cancelled."


class ItemNotFound(InvalidRequest):
    code: ClassVar[str] = "item_not_found"
    default_message: ClassVar[str] = "The conversation has no such item."


class ConversationFull(InvalidRequest):
    code: ClassVar[str] = "conversation_too_large"


_MISPLACED: Final[Mapping[str, type[InvalidRequest]]] = {
    "response.create": ResponseUnderWay,
    "response.cancel": NothingToCancel,
}


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds on what one connection keeps in memory."""

    items: int = 1000
    conversation_bytes: int = 4 * 1024 * 1024  # of the items' JSON; also of one answer


@dataclass(frozen=True, slots=True)
class Respond:
    """A response is to be had of an engine."""

    response: Response


@dataclass(frozen=True, slots=True)
class Cancel:
    """The response under way is to be cancelled."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a client's event leads to: what it is told at once, and what is to be done."""

    events: list[Event] = field(default_factory=list)
    command: Respond | Cancel | None = None


class Session:
    """One conversation with one model. `new_id` makes an identifier that begins with its argument."""

    def __init__(self, model: str, *, new_id: NewId, limits: SessionLimits) -> None:
        self.phase = Phase.IDLE
        self._model = model
        self._new_id = new_id
        self._limits = limits
        self._id = new_id("sess_")
        self._conversation_id = new_id("conv_")
        self._options = Options()
        self._options_bytes = 0
        self._items: list[Item] = []
        self._response: Response | None = None

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(self._items)

    @property
    def held_bytes(self) -> int:
        """What it holds in memory: items, options, and what an engine is being asked."""
        asked = len(self._response.body) if self._response is not None else 0
        return self._size() + self._options_bytes + asked

    def created(self) -> Event:
        """What a client is told first."""
        return self._event("session.created", session=self._shown())

    def take(self, text: str) -> Step:
        """A client's text frame. Never raises a GatehouseError: what is wrong is told in an error event."""
        event_id: str | None = None
        try:
            event = _read_event(text)
            given_id = event.get("event_id")
            if isinstance(given_id, str):
                event_id = given_id[:_EVENT_ID_CHARACTERS]
            return self._handle(event, event_id)
        except GatehouseError as error:
            return Step([self.error(error, event_id)])

    def error(self, error: GatehouseError, event_id: str | None) -> Event:
        """An error, with the client's event that it belongs to."""
        told = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
        return self.error_as_told(told, event_id)

    def error_as_told(self, told: Mapping[str, Any], event_id: str | None) -> Event:
        """The same, of OpenAI's error object."""
        members = {name: told.get(name) for name in ("type", "code", "message", "param")}
        return self._event("error", error={**members, "event_id": event_id})

    def response_over(self) -> None:
        """The response under way has ended, however it did."""
        self.phase = Phase.IDLE
        self._response = None

    # Events of clients

    def _handle(self, event: Mapping[str, Any], event_id: str | None) -> Step:
        kind = event.get("type")
        if not isinstance(kind, str) or kind not in CLIENT_EVENTS:
            name = kind[:64] if isinstance(kind, str) else ""
            raise UnknownEvent(f"There is no event of type '{name}' here.", param="type")
        if self.phase not in CLIENT_EVENTS[kind]:
            raise _MISPLACED[kind]
        match kind:
            case "session.update":
                return self._update(_object(event, "session"))
            case "conversation.item.create":
                return self._create_item(event)
            case "conversation.item.retrieve":
                item = self._items[self._find(event.get("item_id"))]
                return Step([self._event("conversation.item.retrieved", item=dict(item.body))])
            case "conversation.item.delete":
                return self._delete_item(event)
            case "response.create":
                return self._respond(_object(event, "response", optional=True), event_id)
            case _:
                return self._cancel(event)

    def _update(self, given: Mapping[str, Any]) -> Step:
        if given.get("type", "realtime") != "realtime":
            raise InvalidRequest("Expected a session of type realtime.", param="session.type")
        if given.get("model", self._model) != self._model:
            raise InvalidRequest("A session's model cannot be changed: connect anew.", param="session.model")
        check_modalities(given.get("output_modalities"), "session.output_modalities")
        self._options = self._options.changed(given, at="session", known=_SESSION_MEMBERS)
        self._options_bytes = len(msgspec.json.encode(self._options))
        return Step([self._event("session.updated", session=self._shown())])

    def _create_item(self, event: Mapping[str, Any]) -> Step:
        item = read_item(event.get("item"), self._new_id)
        if any(known.id == item.id for known in self._items):
            raise InvalidRequest("The conversation has an item of this id.", param="item.id")
        if len(self._items) >= self._limits.items:
            raise ConversationFull(f"The conversation has {self._limits.items} items: delete some, or connect anew.")
        if self._size() + item.size_bytes > self._limits.conversation_bytes:
            raise ConversationFull(
                f"The conversation would be larger than {self._limits.conversation_bytes} bytes: "
                "delete items, or connect anew."
            )
        at = len(self._items)
        previous = event.get("previous_item_id")
        if previous == _ROOT:
            at = 0
        elif previous is not None:
            at = self._find(previous, param="previous_item_id") + 1
        self._items.insert(at, item)
        before = self._items[at - 1].id if at else None
        body = dict(item.body)
        return Step(
            [
                self._event("conversation.item.added", previous_item_id=before, item=body),
                self._event("conversation.item.done", previous_item_id=before, item=body),
            ]
        )

    def _delete_item(self, event: Mapping[str, Any]) -> Step:
        at = self._find(event.get("item_id"))
        if self._items[at].open:
            raise InvalidRequest("This item is being written: cancel its response first.", param="item_id")
        item = self._items.pop(at)
        return Step([self._event("conversation.item.deleted", item_id=item.id)])

    def _respond(self, given: Mapping[str, Any], event_id: str | None) -> Step:
        check_modalities(given.get("output_modalities"), "response.output_modalities")
        options = self._options.changed(given, at="response", known=_RESPONSE_MEMBERS)
        where = given.get("conversation") or "auto"
        if where not in ("auto", "none"):
            raise InvalidRequest("Expected auto or none.", param="response.conversation")
        metadata = given.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise InvalidRequest("Expected an object.", param="response.metadata")
        items = self._items if given.get("input") is None else self._input(given["input"])
        if sum(item.size_bytes for item in items) > self._limits.conversation_bytes:  # an item may be named many times
            raise ConversationFull(
                f"The response's input is larger than {self._limits.conversation_bytes} bytes.", param="response.input"
            )
        messages = chat_messages(options.instructions, items)
        if not messages:
            raise InvalidRequest("There is nothing to respond to: create an item first.")
        if len(self._items) >= self._limits.items or self._size() >= self._limits.conversation_bytes:
            raise ConversationFull("The conversation is full: delete items, or connect anew.")
        body = {
            "model": self._model,
            "messages": messages,
            **options.chat_members(),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        response = self._response = Response(
            body=msgspec.json.encode(body),
            options=options,
            metadata=metadata,
            conversation_id=self._conversation_id if where == "auto" else None,
            new_id=self._new_id,
            add_item=self._add_output,
            cause=event_id,
            answer_bytes=self._limits.conversation_bytes,
        )
        self.phase = Phase.RESPONDING
        return Step(command=Respond(response))

    def _cancel(self, event: Mapping[str, Any]) -> Step:
        wanted = event.get("response_id")
        if self._response is None or (wanted is not None and wanted != self._response.id):
            raise NothingToCancel(param="response_id" if wanted is not None else None)
        self.phase = Phase.CANCELLING
        return Step(command=Cancel())

    # Items

    def _input(self, given: object) -> list[Item]:
        """Items for one response alone; references are to those of the conversation."""
        if not isinstance(given, list):
            raise InvalidRequest("Expected a list of items.", param="response.input")
        items = []
        for each in given:
            if isinstance(each, dict) and each.get("type") == "item_reference":
                items.append(self._items[self._find(each.get("id"), param="response.input")])
            else:
                items.append(read_item(each, self._new_id))
        return items

    def _add_output(self, item: Item) -> str | None:
        before = self._items[-1].id if self._items else None
        self._items.append(item)
        return before

    def _find(self, item_id: object, *, param: str = "item_id") -> int:
        for at, item in enumerate(self._items):
            if item.id == item_id:
                return at
        raise ItemNotFound(param=param)

    def _size(self) -> int:
        return sum(item.size_bytes for item in self._items)

    # Events of ours

    def _event(self, kind: str, **members: Any) -> Event:
        return {"type": kind, "event_id": self._new_id("event_"), **members}

    def _shown(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "realtime.session",
            "type": "realtime",
            "model": self._model,
            "output_modalities": ["text"],
            **self._options.shown(),
        }


_events = msgspec.json.Decoder(dict[str, Any])


def _read_event(text: str) -> dict[str, Any]:
    try:
        return _events.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BrokenEvent from error


def _object(event: Mapping[str, Any], name: str, *, optional: bool = False) -> Mapping[str, Any]:
    value = event.get(name)
    if value is None and optional:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest("Expected an object.", param=name)
    return value
