"""What an invitation's mail says, in English and in Simplified Chinese."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from tenants.policies.notice_texts import NoticeText, is_chinese

_ROLES: Final[Mapping[str, str]] = {
    "owner": "所有者",
    "admin": "租户管理员",
    "developer": "开发者",
    "viewer": "只读成员",
    "billing": "账务",
}


def invitation_text(*, tenant: str, role: str, link: str, expires_at: datetime, language: str) -> NoticeText:
    """Subject and body; any language but Chinese is English. `expires_at` in UTC."""
    until = f"{expires_at:%Y-%m-%d %H:%M} UTC"
    if is_chinese(language):
        return NoticeText(
            f"邀请您加入 Gatehouse 上的 {tenant}",
            f"您受邀成为 {tenant} 的成员，角色：{_ROLES.get(role, role)}。\n\n{link}\n\n"
            f"该链接只能使用一次，有效期至 {until}。如果这不是您所期待的邀请，请忽略此邮件。\n",
        )
    return NoticeText(
        f"Invitation to {tenant} on Gatehouse",
        f"You are invited to become a member of {tenant}, as {role}.\n\n{link}\n\n"
        f"The link works once, until {until}. If you expected no invitation, do nothing.\n",
    )
