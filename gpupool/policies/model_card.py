"""model-card.yaml: what a version is made of and may be used for. What is missing is all told at once, in sentences."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

SHARES_TOLERANCE: Final = 0.01
_LONGEST_TEXT: Final = 10_000
_MOST_DATA_SETS: Final = 1_000
_MOST_FAULTS: Final = 100
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_UNDISCLOSED: Final = "undisclosed_data"

_TEXTS: Final[Mapping[str, str]] = {
    "model": "the model's name here",
    "version": "the version's name here",
    "licence": "the licence that the weights are used under, for example apache-2.0",
    "intended_use": "what it is meant for, and what not",
}
_OPTIONAL_TEXTS: Final = ("description", "limitations", "contact", "source", _UNDISCLOSED)
_DATA_SET_TEXTS: Final[Mapping[str, str]] = {
    "name": "what it is called",
    "sha256": "its SHA-256",
    "sampling_share": "its share of the training's samples, 0 to 1",
    "de_identification": "how personal data was taken out of it, or why there was none",
}
_OPTIONAL_DATA_SET_TEXTS: Final = ("licence", "source", "version", "description")
_BASE_TEXTS: Final[Mapping[str, str]] = {"name": "what it is called", "sha256": "its SHA-256"}
_OPTIONAL_BASE_TEXTS: Final = ("licence", "source", "version")


class IncompleteCard(ValueError):
    """The card cannot be admitted; `faults` has a sentence for each thing that is missing or wrong."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__(" ".join(faults))


def read_card(stated: Any, *, model: str, version: str) -> dict[str, Any]:
    """The card with texts as texts and shares as numbers, if it is complete and is this version's.

    A card tells of its data sets, or says in `undisclosed_data` who does not tell of them and why the model is used
    all the same. Raises IncompleteCard.
    """
    if not isinstance(stated, Mapping):
        raise IncompleteCard(["A model card is an object with members such as model, version and licence."])
    card, faults = _card(stated)
    for name, own in (("model", model), ("version", version)):
        if name in card and card[name] != own:
            faults.append(f"The card is of the {name} {card[name][:80]!r}; this is {own!r}.")
    if faults:
        raise IncompleteCard(faults[:_MOST_FAULTS])
    return card


def _card(stated: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    known = {*_TEXTS, *_OPTIONAL_TEXTS, "data_sets", "base_models"}
    faults = [f"{str(name)[:80]!r} is no member of a model card." for name in stated if name not in known]
    card: dict[str, Any] = {}
    _take_texts(stated, card, faults, "The card", _TEXTS, _OPTIONAL_TEXTS)
    bases = _objects(stated.get("base_models"), "base_models", faults)
    if bases:
        card["base_models"] = [_base(base, f"Base model {n}", faults) for n, base in enumerate(bases, 1)]
    sets = _objects(stated.get("data_sets"), "data_sets", faults)
    if sets:
        card["data_sets"] = [_data_set(one, f"Data set {n}", faults) for n, one in enumerate(sets, 1)]
        faults += _share_faults(card["data_sets"])
        if _UNDISCLOSED in card:
            faults.append("The card tells of data sets and says that they are not disclosed: one of both.")
    elif _UNDISCLOSED not in card:
        faults.append(
            "The card names no data sets (data_sets): give name, sha256, sampling_share and de_identification of each, "
            "or say in undisclosed_data who does not tell of them and why the model is used all the same."
        )
    return card, faults


def _base(stated: Mapping[str, Any], whose: str, faults: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    faults += _unknown(stated, {*_BASE_TEXTS, *_OPTIONAL_BASE_TEXTS}, whose)
    _take_texts(stated, found, faults, whose, _BASE_TEXTS, _OPTIONAL_BASE_TEXTS)
    _check_digest(found, faults, whose)
    return found


def _data_set(stated: Mapping[str, Any], whose: str, faults: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(stated.get("name"), str) and stated["name"].strip():
        whose = f"{whose} ({stated['name'].strip()[:80]})"
    faults += _unknown(stated, {*_DATA_SET_TEXTS, *_OPTIONAL_DATA_SET_TEXTS}, whose)
    texts = {name: meaning for name, meaning in _DATA_SET_TEXTS.items() if name != "sampling_share"}
    _take_texts(stated, found, faults, whose, texts, _OPTIONAL_DATA_SET_TEXTS)
    _check_digest(found, faults, whose)
    if (given := stated.get("sampling_share")) is None or given == "":
        faults.append(f"{whose} lacks sampling_share: {_DATA_SET_TEXTS['sampling_share']}.")
    elif (share := _number(given)) is None or not 0 < share <= 1:
        faults.append(f"{whose} has a sampling_share that is no number above 0 and at most 1.")
    else:
        found["sampling_share"] = share
    return found


def _share_faults(sets: list[dict[str, Any]]) -> Iterator[str]:
    names = [one["name"] for one in sets if "name" in one]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"The data set {name[:80]!r} is there twice."
    shares = [one["sampling_share"] for one in sets if "sampling_share" in one]
    total = math.fsum(shares)
    if len(shares) == len(sets) and abs(total - 1) > SHARES_TOLERANCE:
        yield f"The sampling shares come to {total:g}; all data sets together are 1."


def _take_texts(
    stated: Mapping[str, Any],
    found: dict[str, Any],
    faults: list[str],
    whose: str,
    required: Mapping[str, str],
    optional: tuple[str, ...],
) -> None:
    for name in (*required, *optional):
        text = stated.get(name)
        text = str(text) if isinstance(text, int | float) and not isinstance(text, bool) else text
        if text is None or (isinstance(text, str) and not text.strip()):
            if name in required:
                faults.append(f"{whose} lacks {name}: {required[name]}.")
        elif not isinstance(text, str) or len(text) > _LONGEST_TEXT or "\0" in text:
            faults.append(f"{whose}: {name} is a text of at most {_LONGEST_TEXT} characters.")
        else:
            found[name] = text.strip()


def _check_digest(found: dict[str, Any], faults: list[str], whose: str) -> None:
    if "sha256" not in found:
        return
    found["sha256"] = found["sha256"].lower().removeprefix("sha256:")
    if not _HEX.fullmatch(found["sha256"]):
        faults.append(f"{whose} has a sha256 that is not 64 hexadecimal digits.")


def _objects(stated: Any, name: str, faults: list[str]) -> list[Mapping[str, Any]]:
    if stated is None or stated == "":
        return []
    if not isinstance(stated, list) or not all(isinstance(one, Mapping) for one in stated):
        faults.append(f"{name} is a list of objects.")
        return []
    if len(stated) > _MOST_DATA_SETS:
        faults.append(f"{name} has more than {_MOST_DATA_SETS} entries.")
        return []
    return stated


def _unknown(stated: Mapping[str, Any], known: set[str], whose: str) -> list[str]:
    return [f"{whose} has no member {str(name)[:80]!r}." for name in stated if name not in known]


def _number(stated: Any) -> float | None:
    if isinstance(stated, bool) or not isinstance(stated, int | float | str):
        return None
    try:
        number = float(stated)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
