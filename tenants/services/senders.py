"""How deliveries really leave the house: by HTTP and by SMTP."""

from core.outbound import OutboundError
from tenants.services.deliveries import Delivered, NotDelivered, Outcome, Post, Senders
from tenants.services.mail import Mail, MailRefused, send_mail
from tenants.services.webhooks import outbound_client, outbound_limits


def post_message(post: Post) -> Outcome:
    """The address is judged anew each time: its name may stand for another by now."""
    try:
        answer = outbound_client().fetch(
            post.url, method="POST", headers=post.headers, body=post.body, limits=outbound_limits()
        )
    except OutboundError as error:
        return NotDelivered(str(error))
    if 200 <= answer.status < 300:
        return Delivered(answer.status)
    if 300 <= answer.status < 400:
        return NotDelivered(f"It answered {answer.status}; redirects are not followed.", answer.status)
    return NotDelivered(f"It answered {answer.status}.", answer.status)


def mail_message(mail: Mail) -> Outcome:
    try:
        send_mail(mail)
    except MailRefused as error:
        return NotDelivered(str(error), again=False)
    except OSError as error:  # smtplib's too; its text may quote the address, which is not ours to keep
        return NotDelivered(f"The mail server failed: {type(error).__name__}.")
    return Delivered()


SENDERS = Senders(post=post_message, mail=mail_message)
