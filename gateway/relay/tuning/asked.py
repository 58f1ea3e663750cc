"""What a client asks for: the body of a new job, and the query of a list."""

from collections.abc import Callable
from typing import Any, Final, Literal
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec

from core.errors import BodyTooLarge, InvalidRequest
from gateway.relay.tuning.names import FILE, number_of
from gateway.relay.tuning.store import NewJob, Page

_MOST_PARAMETERS: Final = 32
_LARGEST_SEED: Final = 2**31 - 1
_LONGEST_MODEL: Final = 200
_MOST_BYTES: Final = 128 * 1024  # reading 32 MiB of members would hold the event loop up for seconds
_LONGEST_NUMBER: Final = 9

_Number = int | float | Literal["auto"] | None


class _Hyperparameters(msgspec.Struct, forbid_unknown_fields=True):
    batch_size: _Number = None
    learning_rate_multiplier: _Number = None
    n_epochs: _Number = None
    beta: _Number = None  # of dpo


class _Settings(msgspec.Struct, forbid_unknown_fields=True):
    hyperparameters: _Hyperparameters | None = None


class _Method(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    supervised: _Settings | None = None
    dpo: _Settings | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    training_file: str
    hyperparameters: _Hyperparameters | None = None
    integrations: list[msgspec.Raw] | None = None
    metadata: dict[str, str] | None = None
    method: _Method | None = None
    seed: int | None = None
    suffix: str | None = None
    validation_file: str | None = None


_body = msgspec.json.Decoder(_Body)


def parse_job(body: bytes, draw_seed: Callable[[], int]) -> NewJob:
    """A new job's body. What only the database knows is not asked here. Raises InvalidRequest, BodyTooLarge."""
    if len(body) > _MOST_BYTES:
        raise BodyTooLarge(f"A fine-tuning job may have {_MOST_BYTES} bytes.")
    try:
        asked = _body.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not a fine-tuning job: {error}.") from error
    if asked.integrations:
        raise InvalidRequest("Integrations are not supported here.", param="integrations")
    if not 0 < len(asked.model) <= _LONGEST_MODEL:
        raise InvalidRequest("A model's name is missing, or it is too long.", param="model")
    method = asked.method or _Method("supervised")
    if method.type not in ("supervised", "dpo"):
        raise InvalidRequest("The method has to be supervised or dpo.", param="method")
    settings: _Settings | None = getattr(method, method.type)
    chosen = (settings and settings.hyperparameters) or asked.hyperparameters or _Hyperparameters()
    seed = draw_seed() if asked.seed is None else asked.seed
    if not 0 <= seed <= _LARGEST_SEED:
        raise InvalidRequest(f"A seed is a whole number from 0 to {_LARGEST_SEED}.", param="seed")
    return NewJob(
        model=asked.model,
        training_file=number_of(FILE, asked.training_file),
        validation_file=_file(asked.validation_file),
        suffix=asked.suffix or "",
        seed=seed,
        method=method.type,
        hyperparameters={name: value for name, value in msgspec.structs.asdict(chosen).items() if value is not None},
        metadata=asked.metadata or {},
    )


def _file(name: str | None) -> UUID | None:
    if not name:
        return None
    if (number := number_of(FILE, name)) is None:
        raise InvalidRequest("There is no such file.", param="validation_file")
    return number


class Query:
    """The parameters of a list; each may be given once, and no other. Raises InvalidRequest."""

    def __init__(self, query: bytes, *, known: frozenset[str], prefix: str) -> None:
        """`prefix`: of the ids of what is listed."""
        self.metadata: dict[str, str] = {}
        self._prefix = prefix
        self._given: dict[str, str] = {}
        try:
            pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
        except ValueError:
            raise InvalidRequest("There are too many parameters.") from None
        for name, value in pairs:
            key = name[9:-1] if name.startswith("metadata[") and name.endswith("]") else None
            if key is not None and "metadata" in known and "\0" not in key + value:
                self.metadata[key] = value
            elif name in self._given or name not in known:
                raise InvalidRequest(f"The parameter '{name[:64]}' is not known here, or given twice.", param=name[:64])
            else:
                self._given[name] = value

    def __getitem__(self, name: str) -> Any:
        return self._given.get(name)

    def page(self, *, default: int, most: int) -> Page:
        """Which part of the list."""
        limit = self._given.get("limit", str(default))
        if not (limit.isascii() and limit.isdigit() and len(limit) <= _LONGEST_NUMBER and 1 <= int(limit) <= most):
            raise InvalidRequest(f"Invalid value for 'limit': expected 1 to {most}.", param="limit")
        order = self._given.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest("Invalid value for 'order': expected asc or desc.", param="order")
        after = None
        if given := self._given.get("after"):
            after = number_of(self._prefix, given)
            if after is None:
                raise InvalidRequest("Invalid value for 'after': there is no such item here.", param="after")
        return Page(int(limit), after, ascending=order == "asc")
