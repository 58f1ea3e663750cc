"""What a notice says to one reader: on pages, by the API and in mails."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext, override

from tenants.policies.notice_texts import CHINESE, ENGLISH, NoticeText, is_chinese, notice_text
from tenants.policies.notices import NoticeKind


def notice_said(kind: NoticeKind, payload: Mapping[str, Any], language: str) -> NoticeText:
    """In the reader's language, whichever is active here."""
    with override(CHINESE if is_chinese(language) else ENGLISH):
        return notice_text(kind, payload, language, gettext)
