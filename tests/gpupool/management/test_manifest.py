"""`manage.py manifest`: what is printed is what is signed, sent to the catalogue, and checked by nodes."""

import hashlib
import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from gpupool.policies.manifest import digest, read_manifest
from gpupool.weights.verify import Verified, verify

DATA = Path(__file__).resolve().parents[2] / "data"
TINY = DATA / "tiny512.gguf"


def said(*arguments: str) -> str:
    out = StringIO()
    call_command("manifest", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize("named", [str(TINY), TINY.as_uri()])
def test_the_printed_bytes_are_those_that_are_signed(named: str) -> None:
    printed = said(named)
    manifest = read_manifest(json.loads(printed))
    assert hashlib.sha256(printed.encode()).hexdigest() == digest(manifest)
    assert isinstance(verify(TINY, manifest), Verified)


def test_an_adapters_facts_are_what_registering_it_takes() -> None:
    told = json.loads(said(str(DATA / "tiny32-lora1"), "--adapter"))
    assert (told["rank"], told["alpha"], told["target_modules"]) == (4, 8.0, ["q_proj", "v_proj"])
    assert told["artefact_uri"].startswith("file:///")


@pytest.mark.shows("R162")
def test_hashing_side_by_side_is_measured_against_one_thread(tmp_path: Path) -> None:
    large = tmp_path / "weights.bin"
    with large.open("wb") as file:
        file.truncate(64 << 20)
    told = json.loads(said(str(large), "--speed"))
    assert told["bytes"] == 64 << 20
    assert told["one_thread_mb_s"] > 0
    assert told["all_threads_mb_s"] > 0
    assert told["threads"] >= 1


def test_what_is_no_whole_model_gets_no_manifest(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(TINY.read_bytes()[:100_000])
    for named, says in (
        (str(cut), "not a whole GGUF file"),
        (str(tmp_path / "absent.gguf"), "cannot be read"),
        ("package:no_such_package/m.gguf", "is not installed"),
        ("file://host/m.gguf", "does not look like"),
    ):
        with pytest.raises(CommandError, match=says):
            said(named)
