"""What a password must be, in words that the catalogue has: Django's own Chinese lacks some of them."""

from django.contrib.auth.password_validation import MinimumLengthValidator, UserAttributeSimilarityValidator
from django.utils.translation import gettext, ngettext


class LongEnough(MinimumLengthValidator):
    """Django's, with our words."""

    def get_error_message(self) -> str:
        return ngettext(
            "This password is too short. It must have at least %(n)s character.",
            "This password is too short. It must have at least %(n)s characters.",
            self.min_length,
        ) % {"n": self.min_length}


class UnlikeTheirName(UserAttributeSimilarityValidator):
    """The same, without the names of our columns."""

    def get_error_message(self) -> str:
        return gettext("The password is too similar to your name or address.")
