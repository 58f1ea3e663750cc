"""What tools print, read whatever stands around it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.discovery.tolerant import json_in, number, pci_address, plain, share, size_bytes, whole, words


@pytest.mark.shows("P21")
@pytest.mark.parametrize(
    "printed",
    [
        '{"gpu": 0, "list": [1, 2]}',
        'WARNING: User is missing the following required groups: render, video.\n{"gpu": 0, "list": [1, 2]}\n',
        'python3: [warn] version {1.2} [0] is old\n{"gpu": 0, "list": [1, 2]}',
        '\x1b[33mWARNING\x1b[0m: a GPU is in a low-power state.\r\n\x1b[1m{"gpu": 0, "list": [1, 2]}\x1b[0m',
        '{"gpu": 0, "list": [1, 2]}\nERROR: exception in atexit [Errno 32]\n',
        '{}\n[]\n{"gpu": 0, "list": [1, 2]}',
    ],
)
def test_json_is_found_among_other_text(printed: str) -> None:
    assert json_in(printed) == {"gpu": 0, "list": [1, 2]}


@pytest.mark.parametrize("printed", ["", "no JSON here", "{broken: [", "[" * 5000, '{"cut": {"off": '])
def test_where_there_is_no_json_there_is_none(printed: str) -> None:
    assert json_in(printed) is None


@given(st.dictionaries(st.text(max_size=5), st.integers(), max_size=4), st.sampled_from(["", "warn [x]\n", "{ "]))
def test_any_object_is_found_behind_any_warning(value: dict[str, int], before: str) -> None:
    found = json_in(before + json.dumps(value) + "\nbye")
    assert found == value or value == {}


@pytest.mark.shows("P21")
@pytest.mark.parametrize(
    ("value", "read"),
    [
        (45, 45.0), ("45 W", 45.0), ("45.5%", 45.5), ({"value": 45, "unit": "W"}, 45.0), ("0x2d", 45.0), ("-3", -3.0),
        ("N/A", None), ("[Not Supported]", None), ("[N/A]", None), ("N/A (Secondary die)", None), ("", None),
        (None, None), (True, None), (float("nan"), None), ({"value": "N/A", "unit": "W"}, None), ([], None),
    ],
)  # fmt: skip
def test_what_is_no_number_is_unknown_and_not_zero(value: object, read: float | None) -> None:
    assert number(value) == read


@pytest.mark.parametrize(
    ("value", "unit", "read"),
    [
        ("16368 MB", "b", 16368 << 20), ({"value": 65520, "unit": "MB"}, "b", 65520 << 20), ("24 GiB", "b", 24 << 30),
        ("34342961152", "b", 34342961152), (64, "mb", 64 << 20), ("12 parsecs", "b", None), ("N/A", "mb", None),
        ({"value": "N/A", "unit": "MB"}, "b", None), ("9007199254740993", "b", 9007199254740993),
    ],
)  # fmt: skip
def test_sizes_carry_units(value: object, unit: str, read: int | None) -> None:
    assert size_bytes(value, unit) == read


def test_shares_beyond_all_are_unknown() -> None:
    assert (share("50 %"), share(100), share(101), share(-1), share("N/A")) == (0.5, 1.0, None, None, None)


def test_words_that_say_nothing_are_empty() -> None:
    for nothing in ("N/A", "[Not Supported]", "<unknown>", "None", "", "-", None, True):
        assert words(nothing) == ""
    assert (words(" Gen 4 "), words(5), whole("7.9"), whole("0x10")) == ("Gen 4", "5", 7, 16)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:1E:00.0", "0000:1e:00.0"), ("00000000:17:00.0", "0000:17:00.0"), ("9b:00.0", "0000:9b:00.0"),
        ("PCI:0000:9b:00", "0000:9b:00.0"), ("000d:00:00", "000d:00:00.0"), ("N/A", ""), (None, ""),
        ("10000:01:00.0", "10000:01:00.0"), ("00010001:01:00.0", "10001:01:00.0"),
    ],
)  # fmt: skip
def test_pci_addresses_are_written_as_the_kernel_writes_them(text: object, address: str) -> None:
    assert pci_address(text) == address


def test_colours_are_taken_out() -> None:
    assert plain("\x1b[4mGPU0\x1b[0m\r\n\x1b]0;title\x07end") == "GPU0\nend"


@pytest.mark.parametrize("value", ["0x" + "f" * 400, 10**400, "9" * 5000, "\u00b2", "1e999", float("inf"), "1e300"])
def test_numbers_that_no_machine_has_are_unknown(value: object) -> None:
    assert whole(value) is None
    assert size_bytes(value, "mb") is None
    assert size_bytes(f"{value} MB") is None
    parsed = number(value)
    assert parsed is None or parsed == 1e300
