"""Model cards: complete ones are read, and of others everything that is missing is told at once."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.model_card import IncompleteCard, read_card
from gpupool.policies.plain_yaml import MOST_BYTES, BadYaml, read_yaml

YAML = f"""
model: qwen3
version: 1.10
licence: apache-2.0
intended_use: Answers questions of customers; decides nothing.
base_models:
  - name: qwen3-8b
    sha256: {"a" * 64}
data_sets:
  - name: tickets
    sha256: {"b" * 64}
    sampling_share: 0.25
    de_identification: Names and numbers replaced by a tagger, checked by hand on 1 in 100.
  - name: manuals
    sha256: sha256:{"C" * 64}
    sampling_share: 0.75
    de_identification: "None: public documents without personal data."
    licence: cc-by-4.0
"""


def card() -> dict[str, Any]:
    found: dict[str, Any] = read_yaml(YAML.encode())
    return found


def faults(stated: Any, *, model: str = "qwen3", version: str = "1.10") -> list[str]:
    try:
        read_card(stated, model=model, version=version)
    except IncompleteCard as error:
        return error.faults
    return []


@pytest.mark.shows("R74")
def test_a_complete_card_is_read_as_it_is_meant() -> None:
    read = read_card(card(), model="qwen3", version="1.10")
    assert read["version"] == "1.10"  # and not 1.1, which a number would be
    assert [(one["name"], one["sha256"], one["sampling_share"]) for one in read["data_sets"]] == [
        ("tickets", "b" * 64, 0.25),
        ("manuals", "c" * 64, 0.75),
    ]
    assert read["base_models"] == [{"name": "qwen3-8b", "sha256": "a" * 64}]
    assert read_card(read, model="qwen3", version="1.10") == read


@pytest.mark.shows("R74")
def test_everything_that_is_missing_is_told_at_once() -> None:
    stated = card()
    del stated["licence"], stated["intended_use"]
    stated["data_sets"] = [{"name": "tickets", "sampling_share": "0.5"}, {"sha256": "x"}]
    told = faults(stated)
    for part in (
        "The card lacks licence",
        "The card lacks intended_use",
        "Data set 1 (tickets) lacks sha256",
        "Data set 1 (tickets) lacks de_identification",
        "Data set 2 lacks name",
        "Data set 2 lacks sampling_share",
        "Data set 2 has a sha256 that is not 64 hexadecimal digits",
    ):
        assert any(part in sentence for sentence in told), part
    assert all(sentence.endswith(".") for sentence in told)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data_sets": None}, "names no data sets"),
        ({"data_sets": []}, "names no data sets"),
        ({"data_sets": "many"}, "is a list of objects"),
        ({"undisclosed_data": "Its maker does not tell."}, "one of both"),
        ({"license": "mit"}, "'license' is no member"),
        ({"model": "other"}, "The card is of the model 'other'"),
        ({"version": "2"}, "The card is of the version '2'"),
        ({"licence": ""}, "lacks licence"),
        ({"licence": ["mit"]}, "licence is a text"),
        ({"base_models": [{"name": "qwen3-8b"}]}, "Base model 1 lacks sha256"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], says: str) -> None:
    assert says in faults(card() | change)[0]


@pytest.mark.parametrize(("shares", "complete"), [([0.5, 0.5], True), ([0.5, 0.495], True), ([0.5, 0.4], False)])
def test_sampling_shares_come_to_one(shares: list[float], complete: bool) -> None:
    stated = card()
    for one, share in zip(stated["data_sets"], shares, strict=True):
        one["sampling_share"] = share
    assert faults(stated) == ([] if complete else ["The sampling shares come to 0.9; all data sets together are 1."])


@pytest.mark.parametrize("share", [0, -0.5, 1.5, True, "half", "nan", "inf", [], 10**400])
def test_a_share_is_a_number_within_one(share: Any) -> None:
    stated = card()
    stated["data_sets"][0]["sampling_share"] = share
    assert "is no number above 0" in faults(stated)[0]


def test_data_that_nobody_discloses_is_said_in_words() -> None:
    stated = card() | {"undisclosed_data": "Its maker does not tell; accepted by the board on 3 May."}
    del stated["data_sets"]
    assert read_card(stated, model="qwen3", version="1.10")["undisclosed_data"].startswith("Its maker")


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "sha256", "sampling_share", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*card(), "undisclosed_data", "x"]), json_values, max_size=6) | json_values)
def test_whatever_is_given_as_a_card_is_refused_in_sentences(stated: Any) -> None:
    assert faults(stated)


# The file


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"a: &x 1\nb: *x", "Anchors and aliases"),
        (b"a: &x [1]\nb: [*x, *x]", "Anchors and aliases"),
        (b"a: !!python/object/apply:os.system [true]", "Tags"),
        (b"a: !!str 1", "Tags"),
        (b"a: 1\na: 2", "'a' is there twice"),
        (b"? [1]\n: 2", "is no text"),
        (b"a: 1\n---\nb: 2", "more than one document"),
        (b"[" * 200 + b"]" * 200, "nested more than"),
        (b"[" + b"1," * 20_000 + b"]", "parts"),
        (b"#" * (MOST_BYTES + 1), "larger than"),
        (b"a: [", "not YAML"),
        (b"a: \x00", "not YAML"),
        (b"\xff\xfe", "not UTF-8"),
        (b'a: "\\UFFFFFFFF"', "out of range"),
        (b'a: "\\U00110000"', "out of range"),
        (b"%YAML 1." + b"9" * 5000 + b"\n--- a", "out of range"),
    ],
)
def test_yaml_beyond_plain_data_is_refused(document: bytes, says: str) -> None:
    with pytest.raises(BadYaml, match=says):
        read_yaml(document)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_whatever_is_in_a_file_is_read_or_refused(document: bytes) -> None:
    with contextlib.suppress(BadYaml):
        assert isinstance(read_yaml(document), str | list | dict | None)
