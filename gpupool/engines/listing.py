"""OpenAI's list of models, which every engine that speaks its API answers `GET /v1/models` with."""

import msgspec


class _ListedModel(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ListedModel]


def parse_model_list(body: bytes) -> tuple[str, ...]:
    """Names of the models, in the server's order. Raises ValueError for an answer of another shape."""
    try:
        return tuple(model.id for model in msgspec.json.decode(body, type=_ModelList).data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"This is not a list of models: {error}.") from error
