"""Whether a person has a second factor, and whether they must."""

from allauth.mfa.models import Authenticator
from django.conf import settings

from tenants.models import User
from tenants.policies import second_factor


def has_second_factor(user: User) -> bool:
    """An authenticator app or a passkey; recovery codes alone are none."""
    strong = Authenticator.objects.filter(user=user).exclude(type=Authenticator.Type.RECOVERY_CODES)
    return bool(strong.exists())


def must_have_second_factor(user: User) -> bool:
    return second_factor.is_required(settings.REQUIRE_SECOND_FACTOR_OF, platform_role=user.active_platform_role)


def lacks_second_factor(user: User) -> bool:
    """True: they may do nothing but set one up."""
    return must_have_second_factor(user) and not has_second_factor(user)
