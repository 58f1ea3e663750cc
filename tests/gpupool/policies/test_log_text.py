"""What people see of a log: its end, without what terminals obey and without secrets."""

import time

import pytest

from gpupool.policies.log_text import (
    HIDDEN,
    LARGEST_TEXT,
    LONGEST_LINE,
    MOST_LINES,
    clean_line,
    hide_secrets,
    last_lines,
)
from tests.pace import pace


def test_the_last_lines_are_kept_and_it_is_said_that_there_are_more() -> None:
    tail = last_lines("\n".join(f"line {n}" for n in range(500)) + "\n")
    assert tail.text.split("\n") == [f"line {n}" for n in range(500 - MOST_LINES, 500)]
    assert tail.cut
    assert not last_lines("one\ntwo\n").cut


def test_a_long_line_is_shortened_and_all_of_it_stays_within_a_report() -> None:
    tail = last_lines("\n".join("x" * 10_000 for _ in range(500)))
    assert all(len(line) == LONGEST_LINE for line in tail.text.split("\n"))
    assert len(tail.text) <= LARGEST_TEXT
    assert tail.cut


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07text", "red text"),
        ("10 %\r50 %\r100 %\r", "100 %"),
        ("a\x00b\x08c\x9bd", "abcd"),
        ("user\u202egnp.exe", "usergnp.exe"),
        ("\tindented", "\tindented"),
    ],
)
def test_nothing_is_left_that_a_terminal_or_a_page_would_obey(line: str, seen: str) -> None:
    assert clean_line(line) == seen


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("args: --api-key s3cretvalue --port 8000", "s3cretvalue"),
        ("Namespace(api_key='s3cretvalue', port=8000)", "s3cretvalue"),
        ('{"hf_token": "s3cretvalue", "model": "m"}', "s3cretvalue"),
        ("Authorization: Bearer abcdef123456", "abcdef123456"),
        ("HF_TOKEN=hf_ABCDEFGHIJKLMNOPQRST", "hf_ABCDEFGHIJKLMNOPQRST"),
        ("got sk-gh-0123456789abcdef from a client", "sk-gh-0123456789abcdef"),
        ("pulling https://bot:hunter22@registry.example/x", "hunter22"),
        ("password: correct-horse", "correct-horse"),
        ("AWS AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
        ("non-default args: {'api_key': ['s3cretvalue'], 'port': 8000}", "s3cretvalue"),
        ("headers: [(b'x-api-key', b's3cretvalue')]", "s3cretvalue"),
        ("password: 12345678", "12345678"),
        ("password='a,b;c-secret' host=db", "c-secret"),
        ("Authorization: Digest s3cret,value", "s3cret"),
        ("Cookie: a=b; sessionid=s3cretvalue", "s3cretvalue"),
        ("redis://:pa@ss@host:6379/0", "ss@host"),
        ("cloning https://s3cret-token@registry.example/x", "s3cret-token"),
        ("GET /x?X-Amz-Signature=s3cretvalue&y=1", "s3cretvalue"),
        ("jwt eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abc-def", "eyJzdWIiOiIxMjM0"),
    ],
)
def test_secrets_are_hidden(line: str, secret: str) -> None:
    hidden = hide_secrets(line)
    assert secret not in hidden
    assert HIDDEN in hidden


def test_what_is_hidden_is_hidden_once() -> None:
    assert hide_secrets("Authorization: Bearer s3cretvalue") == f"Authorization: {HIDDEN}"
    assert hide_secrets("(b'authorization', b'Bearer s3cretvalue')") == f"(b'authorization', b'{HIDDEN}')"
    assert hide_secrets(hide_secrets("api_key=['s3cretvalue']")) == f"api_key=['{HIDDEN}']"


@pytest.mark.parametrize("piece", ["a-", "--", "api-", "sk-", "token ", "a://b:", "eyJaaaaaaaa.", "\x1b]", "\x1b[0"])
def test_a_line_without_end_takes_no_time(piece: str) -> None:
    """Engines, and nodes, could else hold up whoever reads their logs."""
    before, began = pace(), time.process_time()
    last_lines("\n".join([piece * (LARGEST_TEXT // len(piece) // 4)] * 4))
    assert (time.process_time() - began) / min(before, pace()) < 0.5


def test_a_secret_that_a_line_is_cut_in_is_not_shown_in_half() -> None:
    line = "password=s3cretvalue " * 90
    for length in range(1900, 2100, 7):
        assert "s3c" not in clean_line("x" * (length - 1890) + " " + line + "password=s3cretvalue" + "y" * 500)


def test_a_private_key_is_hidden_with_all_of_its_lines() -> None:
    body = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"] * 3
    key = ["-----BEGIN RSA PRIVATE KEY-----", *body, "-----END RSA PRIVATE KEY-----"]
    assert last_lines("\n".join(["before", *key, "after"])).text == f"before\n{HIDDEN}\nafter"
    assert last_lines("\n".join([*body, key[-1], "after"])).text == f"{HIDDEN}\nafter"


@pytest.mark.parametrize(
    "line",
    [
        "n_ctx_per_seq (4096) < n_ctx_train (131072) -- the full capacity of the model will not be utilized",
        "prompt eval time = 812.00 ms / 23 tokens ( 35.30 ms per token, 28.33 tokens per second)",
        "max_total_num_tokens=412288, chunked_prefill_size=8192, api_key=None",
        "bos_token: 128000",
        "listening on http://127.0.0.1:21000",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert hide_secrets(line) == line
