"""OpenAI's list of models, which every engine that speaks its API answers `GET /v1/models` with."""

import msgspec


class _ListedModel(msgspec.Struct):
    id: str
    parent: str | None = None  # of a LoRA adapter: the model that it adapts (vLLM, SGLang)


class _ModelList(msgspec.Struct):
    data: list[_ListedModel]


def parse_model_list(body: bytes) -> tuple[str, ...]:
    """Names of the models, in the server's order. Raises ValueError for an answer of another shape."""
    return tuple(model.id for model in _parse(body))


def parse_adapter_list(body: bytes) -> tuple[str, ...]:
    """Names of those that are LoRA adapters of another. Raises ValueError for an answer of another shape."""
    return tuple(model.id for model in _parse(body) if model.parent is not None)


def _parse(body: bytes) -> list[_ListedModel]:
    try:
        return msgspec.json.decode(body, type=_ModelList).data
    except msgspec.MsgspecError as error:
        raise ValueError(f"This is not a list of models: {error}.") from error
