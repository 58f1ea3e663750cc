"""Notices as people read them: amounts, and sentences in Chinese."""

import re

import pytest

from tenants.policies import notice_texts
from tenants.policies.notice_texts import amount_text
from tenants.policies.notices import NoticeKind
from tenants.services.notice_saying import notice_said


@pytest.mark.parametrize(
    ("metric", "amount", "said"),
    [
        ("tokens", 1500, "1,500 tokens"),
        ("money", 12_340_000, "12.34 EUR"),
        ("money", 1_234_567_890_000, "1,234,567.89 EUR"),
        ("money", 1_005_000, "1.01 EUR"),  # half up, which no float does
        ("money", 9_007_199_254_740_992, "9,007,199,254.74 EUR"),
        ("money", 500, "0.0005 EUR"),  # a budget of nothing it is not
        ("money", 0, "0.00 EUR"),
    ],
)
def test_money_is_said_exactly_to_the_cent_and_less_than_one_in_full(metric: str, amount: int, said: str) -> None:
    assert amount_text(metric, amount, "EUR" if metric == "money" else "") == said


@pytest.mark.parametrize("kind", NoticeKind)
def test_chinese_sentences_have_chinese_marks(kind: NoticeKind) -> None:
    _english, chinese = notice_texts._TEXTS[kind]
    for text in chinese:
        assert not re.search(r"[\u4e00-\u9fff}] ?[,;:?]|[,;:?] ?[\u4e00-\u9fff{]", text)


def test_chinese_words_have_full_marks_and_spaces_beside_latin_ones() -> None:
    payload = {"metric": "tokens", "window": "month", "share": 50}
    assert notice_said(NoticeKind.BUDGET_SHARE, payload, "zh-hans").subject == "每月 token 预算已使用 50%"
    assert notice_said(NoticeKind.BUDGET_SHARE, payload | {"metric": "money"}, "zh-hans").subject.startswith("每月费用")
    burning = {"severity": "page", "name": "A", "long_burn": 14}
    assert notice_said(NoticeKind.OBJECTIVE_BURNING, burning, "zh-hans").subject.startswith("紧急告警：A 的")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("It answered 410: nobody is there any more.", "对方应答 410：该地址已不再使用。请修复后重新启用。"),
        (
            "Every attempt failed for 5 days, the last with: It answered 500.",
            "连续 5 天每次尝试都失败，最后一次：对方应答 500。请修复后重新启用。",
        ),
        ("The name h cannot be resolved.", "无法解析名称 h。请修复后重新启用。"),
        ("No connection to h: Connection refused.", "无法连接 h：Connection refused。请修复后重新启用。"),
        (
            "Every attempt failed for 5 days, the last with: The connection to h broke: Connection reset by peer.",
            "连续 5 天每次尝试都失败，最后一次：与 h 的连接中断：Connection reset by peer。请修复后重新启用。",
        ),
        ("Nobody knows this one.", "Nobody knows this one. 请修复后重新启用。"),
    ],
)
def test_why_a_webhook_was_disabled_is_said_in_chinese_too(reason: str, said: str) -> None:
    payload = {"host": "example.com", "reason": reason}
    body = notice_said(NoticeKind.WEBHOOK_DISABLED, payload, "zh-hans").body
    assert body == f"无法投递到 example.com：{said}"
