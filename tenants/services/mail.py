"""One e-mail, as it leaves the house."""

import smtplib
from dataclasses import dataclass
from uuid import UUID

from django.core.mail import EmailMessage


@dataclass(frozen=True, slots=True)
class Mail:
    """To one person; `id` stays the same when it is sent again."""

    to: str
    subject: str
    body: str
    id: UUID


class MailRefused(Exception):
    """The server will never take it."""


def send_mail(mail: Mail) -> None:
    """Raises MailRefused, and OSError (smtplib's errors among them) for what may succeed later."""
    subject = " ".join(mail.subject.split())  # a name in it may have a line break
    headers = {"Message-ID": f"<{mail.id}@gatehouse>", "Auto-Submitted": "auto-generated"}
    message = EmailMessage(subject=subject, body=mail.body, to=[mail.to], headers=headers)
    try:
        message.send()
    except smtplib.SMTPRecipientsRefused as error:
        if all(code >= 500 for code, _ in error.recipients.values()):
            raise MailRefused("The mail server knows no such recipient.") from error
        raise
