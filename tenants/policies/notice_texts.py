"""What a notice says, in English and in Simplified Chinese. Payloads are those that `raise_notice` is called with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

from tenants.policies.delivery_sentences import delivery_said
from tenants.policies.money import amount_of
from tenants.policies.notices import NoticeKind

ENGLISH: Final = "en"
CHINESE: Final = "zh-hans"
_CENT: Final = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class NoticeText:
    """`subject` is one line."""

    subject: str
    body: str


_METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "requests": ("requests", "请求"),
    "tokens": ("tokens", "token"),
    "input_tokens": ("input tokens", "输入 token"),
    "output_tokens": ("output tokens", "输出 token"),
    "money": ("money", "费用"),
    "concurrency": ("requests at once", "并发请求"),
    "held_requests": ("held requests", "排队请求"),
    "gpus": ("GPUs", "GPU"),
    "gpu_memory": ("GPU memory", "GPU 显存"),
}
_WINDOWS: Final[Mapping[str, tuple[str, str]]] = {
    "minute": ("a minute", "每分钟"),
    "bucket": ("token bucket", "令牌桶"),
    "day": ("daily", "每日"),
    "month": ("monthly", "每月"),
    "standing": ("at any moment", "任意时刻"),
}
_STATES: Final[Mapping[str, tuple[str, str]]] = {
    "approved": ("approved", "已批准"),
    "declined": ("declined", "已拒绝"),
    "withdrawn": ("withdrawn", "已撤回"),
    "expired": ("expired", "已过期"),
}
_SEVERITIES: Final[Mapping[str, tuple[str, str]]] = {"page": ("Page", "紧急告警"), "ticket": ("Ticket", "工单")}

_TEXTS: Final[Mapping[NoticeKind, tuple[tuple[str, str], tuple[str, str]]]] = {
    NoticeKind.BUDGET_SHARE: (
        (
            "{share} % of the {window} budget of {metric_name} is used",
            "{scope} used {used} of {amount} in the period that ends on {period_end}. When the budget is used up, "
            "requests are refused until then.",
        ),
        (
            "{window}{metric_name}预算已使用 {share}%",
            "{scope} 在截至 {period_end} 的周期内已使用 {used}，预算为 {amount}。"
            "预算用尽后，请求将被拒绝，直至周期结束。",
        ),
    ),
    NoticeKind.BUDGET_REFUSING: (
        (
            "Requests are refused under the {window} budget of {metric_name}",
            "{scope} used {used} of {amount}, and running requests have reserved so much of the rest that others were "
            "refused. The period ends on {period_end}.",
        ),
        (
            "{window}{metric_name}预算已开始拒绝请求",
            "{scope} 已使用 {used}，预算为 {amount}。正在进行的请求已预留其余大部分，因此其他请求被拒绝。"
            "周期于 {period_end} 结束。",
        ),
    ),
    NoticeKind.BUDGET_FORECAST: (
        (
            "At this rate the {window} budget of {metric_name} is used up on {reached_on}",
            "{scope} used {used} of {amount} so far. At this rate it will be {expected} by the end of the period, "
            "{period_end}; the budget would be reached on {reached_on}.",
        ),
        (
            "按当前速度，{window}{metric_name}预算将于 {reached_on} 用尽",
            "{scope} 目前已使用 {used}，预算为 {amount}。按当前速度，到周期结束（{period_end}）时预计达到 {expected}，"
            "预算将于 {reached_on} 用尽。",
        ),
    ),
    NoticeKind.KEY_EXPIRING: (
        (
            "The key {name} expires on {ends_at}",
            "The API key {name} ({masked}) expires on {ends_at}. Applications that use it are refused from then on: "
            "rotate it before.",
        ),
        (
            "密钥 {name} 将于 {ends_at} 过期",
            "API 密钥 {name}（{masked}）将于 {ends_at} 过期。此后使用它的应用将被拒绝，请提前轮换。",
        ),
    ),
    NoticeKind.KEY_COMPROMISED: (
        (
            "The key {name} was revoked as compromised",
            "The API key {name} ({masked}) was revoked because somebody else may know it. Look at its usage, and "
            "replace it where it was used.",
        ),
        (
            "密钥 {name} 因泄露已被吊销",
            "API 密钥 {name}（{masked}）可能已被他人获知，因此已被吊销。请检查其用量，并在使用它的地方进行更换。",
        ),
    ),
    NoticeKind.GRANT_ENDING: (
        (
            "Access to {model} ends on {ends_at}",
            "The grant for {model} was given for a time and ends on {ends_at}. Ask for more if it is still needed.",
        ),
        (
            "对 {model} 的访问权限将于 {ends_at} 结束",
            "对 {model} 的授权是临时的，将于 {ends_at} 结束。如仍需要，请再次申请。",
        ),
    ),
    NoticeKind.BOOST_ENDING: (
        (
            "A raised limit of {metric_name} ends on {ends_at}",
            "The {window} limit of {metric_name} is raised to {boost_amount} until {ends_at}; then it is {amount} "
            "again. Ask for more if it is still needed.",
        ),
        (
            "临时提高的{metric_name}限额将于 {ends_at} 结束",
            "{window}{metric_name}限额已临时提高到 {boost_amount}，将于 {ends_at} 恢复为 {amount}。"
            "如仍需要，请再次申请。",
        ),
    ),
    NoticeKind.TENANT_SUSPENDED: (
        ("{tenant_name} is suspended", "All requests of {tenant_name} are refused until the platform resumes it."),
        ("{tenant_name} 已暂停", "{tenant_name} 的所有请求都将被拒绝，直至平台恢复。"),
    ),
    NoticeKind.TENANT_RESUMED: (
        ("{tenant_name} is active again", "Requests of {tenant_name} are served again."),
        ("{tenant_name} 已恢复", "{tenant_name} 的请求已恢复服务。"),
    ),
    NoticeKind.WEBHOOK_DISABLED: (
        (
            "The webhook to {host} was disabled",
            "Nothing could be delivered to {host}: {reason} Repair it, then enable it again.",
        ),
        ("发往 {host} 的 Webhook 已被停用", "无法投递到 {host}：{reason_said}请修复后重新启用。"),
    ),
    NoticeKind.OBJECTIVE_BURNING: (
        (
            "{severity_name}: {name} burns its error budget at {long_burn}x",
            "Over {long_window} the objective {name} burned its error budget {long_burn} times faster than it may, and "
            "over {short_window} {short_burn} times; {severity_name} is due above {burn_threshold} in both. "
            "{remaining_percent} of the budget of {window_days} days is left. Look at the objective's page and "
            "acknowledge the alert, or it is told again.",
        ),
        (
            "{severity_name}：{name} 的错误预算正以 {long_burn} 倍速率消耗",
            "目标 {name} 在过去 {long_window} 内以允许速率的 {long_burn} 倍消耗错误预算，在过去 {short_window} 内为 "
            "{short_burn} 倍；两者均超过 {burn_threshold} 倍时触发{severity_name}。{window_days} 天预算还剩 "
            "{remaining_percent}。请查看该目标的页面并确认告警，否则将再次通知。",
        ),
    ),
    NoticeKind.OBJECTIVE_RECOVERED: (
        (
            "Over: {name} {over_because}",
            "The alert of {opened_at} about the objective {name} ({long_window} and {short_window}) is over."
            "{budget_left}",
        ),
        (
            "{over_because}",
            "目标 {name} 自 {opened_at} 起的告警（{long_window} 与 {short_window}）已结束。{budget_left}",
        ),
    ),
    NoticeKind.REQUEST_OPENED: (
        (
            "{tenant_name} asks for {asked}",
            "{tenant_name} asks for {asked}. See its reason and what it would mean for capacity, and decide.",
        ),
        ("{tenant_name} 申请 {asked}", "{tenant_name} 申请 {asked}。请查看申请理由及其对容量的影响，并作出决定。"),
    ),
    NoticeKind.REQUEST_DECIDED: (
        ("The request for {asked} is {state_name}", "The request for {asked} is {state_name}."),
        ("对 {asked} 的申请{state_name}", "对 {asked} 的申请{state_name}。"),
    ),
    NoticeKind.TEST: (
        ("A test of this webhook", "Nothing happened: somebody tests this webhook."),
        ("Webhook 测试", "没有发生任何事情：有人在测试此 Webhook。"),
    ),
}


_OVER: Final[Mapping[str, tuple[str, str]]] = {
    "": ("burns its error budget no faster than it may", "已恢复：{name} 的错误预算消耗恢复正常"),
    "changed": ("was changed", "已结束：目标 {name} 已更改"),
    "disabled": ("was switched off", "已结束：目标 {name} 已停用"),
    "deleted": ("was deleted", "已结束：目标 {name} 已删除"),
}
"""Why an alert about an objective is over, by `ended_by` of the payload."""


class _Words(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "…"  # a payload of an older version may lack what the text says now


def is_chinese(language: str) -> bool:
    """Any language but Chinese is English here."""
    return language.lower().startswith("zh")


def notice_text(
    kind: NoticeKind, payload: Mapping[str, Any], language: str, translate: Callable[[str], str]
) -> NoticeText:
    """Subject and body; `translate` gives the pages' words for what others said in English, in this language."""
    chinese = is_chinese(language)
    subject, body = _TEXTS[kind][chinese]
    words = _words(payload, chinese, translate)
    return NoticeText(" ".join(subject.format_map(words).split()), body.format_map(words))


def amount_text(metric: str, amount: int, currency: str = "", *, chinese: bool = False) -> str:
    """`1,500 tokens`, or money (in millionths) as `12.34 EUR`; less than one of the currency in full."""
    if metric == "money":
        exact = Decimal(amount_of(amount))
        shown = exact if abs(exact) < 1 else exact.quantize(_CENT, ROUND_HALF_UP)
        return f"{shown:,f} {currency}".strip()
    return f"{amount:,} {_METRICS.get(metric, (metric, metric))[chinese]}"


def _words(payload: Mapping[str, Any], chinese: bool, translate: Callable[[str], str]) -> _Words:
    words = _Words((name, str(value)) for name, value in payload.items())
    metric, currency = str(payload.get("metric", "")), str(payload.get("currency", ""))
    name_of_metric = _METRICS.get(metric, (metric, metric))[chinese]
    words["metric_name"] = _beside_chinese(name_of_metric) if chinese else name_of_metric
    words["reason_said"] = _whole(delivery_said(str(payload.get("reason", "…")), translate))
    for name in ("amount", "used", "expected", "boost_amount"):
        value = payload.get(name)
        if isinstance(value, int):
            words[name] = amount_text(metric, value, currency, chinese=chinese)
    for name in ("period_start", "period_end", "ends_at", "opened_at"):
        if name in payload:
            words[name] = _moment_text(str(payload[name]), str(payload.get("time_zone", "")))
    if (window := str(payload.get("window", ""))) in _WINDOWS:
        words["window"] = _WINDOWS[window][chinese]
    if (state := str(payload.get("state", ""))) in _STATES:
        words["state_name"] = _STATES[state][chinese]
    if (severity := str(payload.get("severity", ""))) in _SEVERITIES:
        words["severity_name"] = _SEVERITIES[severity][chinese]
        words |= _objective_words(payload, chinese)
    if "kind" in payload:
        words["asked"] = _asked(payload, words, chinese)
    return words


def _objective_words(payload: Mapping[str, Any], chinese: bool) -> dict[str, str]:
    """The windows of a pair ("1h-5m") and what is left of the budget, in words."""
    units = {"m": ("min", "分钟"), "h": ("h", "小时"), "d": ("d", "天")}
    windows = [
        f"{window[:-1]} {units[window[-1]][chinese]}" if window[-1:] in units else window
        for window in str(payload.get("pair", "")).split("-")
    ]
    left = payload.get("budget_remaining")
    unknown = "未知" if chinese else "An unknown share"
    remaining = f"{left * 100:.1f} %" if isinstance(left, (int, float)) else unknown
    ended_by, days = str(payload.get("ended_by", "")), payload.get("window_days", "…")
    over = _OVER.get(ended_by, _OVER[""])[chinese].format(name=payload.get("name", "…"))
    told = f"{days} 天预算还剩 {remaining}。" if chinese else f" {remaining} of the budget of {days} days is left."
    return {
        "long_window": windows[0],
        "short_window": windows[-1],
        "remaining_percent": remaining,
        "over_because": over,
        "budget_left": "" if ended_by else told,
    }


def _beside_chinese(word: str) -> str:
    """With a space where a Latin letter would stand beside a Chinese character."""
    return f"{' ' * word[:1].isascii()}{word}{' ' * word[-1:].isascii()}"


def _whole(sentence: str) -> str:
    """With a space after it where another Chinese sentence follows and it has no Chinese full stop."""
    return sentence if sentence.endswith("。") else f"{sentence} "


def _moment_text(iso: str, zone: str) -> str:
    try:
        return f"{datetime.fromisoformat(iso):%Y-%m-%d %H:%M} {zone}".strip()
    except ValueError:
        return iso


def _asked(payload: Mapping[str, Any], words: _Words, chinese: bool) -> str:
    if payload["kind"] == "model":
        return ("模型 {model}" if chinese else "the model {model}").format_map(words)
    template = "{window}{metric_name}限额 {amount}" if chinese else "a {window} limit of {amount}"
    return template.format_map(words)
