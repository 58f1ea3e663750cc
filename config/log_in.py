"""How people log in, as django-allauth is told it."""

from typing import Any, Final
from urllib.parse import urlsplit

from config.environment import Environment
from core.env import SettingsError

PROVIDER_ID: Final = "sso"
"""The OpenID Connect provider's part of addresses: /oidc/sso/login/ and /oidc/sso/login/callback/."""
_REQUIRED_OF: Final = ("off", "platform", "all")


def log_in_settings(environment: Environment) -> dict[str, Any]:
    """Django settings. Raises SettingsError for a half-told provider or an unknown word."""
    if environment.require_mfa not in _REQUIRED_OF:
        raise SettingsError(f"GATEHOUSE_REQUIRE_MFA={environment.require_mfa!r} is none of {', '.join(_REQUIRED_OF)}")
    return {
        "ACCOUNT_ADAPTER": "dashboard.accounts.adapters.AccountAdapter",
        "ACCOUNT_USER_MODEL_USERNAME_FIELD": None,
        "ACCOUNT_LOGIN_METHODS": {"email"},
        "ACCOUNT_SIGNUP_FIELDS": ["email*", "password1*"],
        "ACCOUNT_SIGNUP_ENABLED": False,
        "ACCOUNT_EMAIL_VERIFICATION": "none",  # addresses are vouched for by who invites; nothing needs SMTP
        "ACCOUNT_RATE_LIMITS": False,  # dashboard.login_guard counts, and lets people in while the cache is away
        "ACCOUNT_REAUTHENTICATION_METHODS": ["password", "mfa", "link"],
        "ACCOUNT_REAUTHENTICATION_TIMEOUT": 15 * 60,  # seconds
        "MFA_ADAPTER": "dashboard.accounts.adapters.SecondFactorAdapter",
        "MFA_SUPPORTED_TYPES": ["totp", "webauthn", "recovery_codes"],
        "MFA_PASSKEY_LOGIN_ENABLED": True,
        "MFA_RECOVERY_CODES_SHOW_ONCE": True,
        "MFA_ALLOW_UNVERIFIED_EMAIL": True,
        "MFA_TOTP_ISSUER": "Gatehouse",
        "MFA_TOTP_TOLERANCE": 1,  # codes of the 30 seconds before and after count too: clocks differ
        "MFA_RATE_LIMITS": False,
        "SOCIALACCOUNT_ADAPTER": "dashboard.accounts.adapters.ProviderAdapter",
        "SOCIALACCOUNT_LOGIN_ON_GET": True,  # a form's redirect to the provider would need it in the form-action policy
        "SOCIALACCOUNT_STORE_TOKENS": False,
        "SOCIALACCOUNT_PROVIDERS": _providers(environment),
    }


def _providers(environment: Environment) -> dict[str, Any]:
    issuer = environment.oidc_issuer
    if issuer is None:
        return {}
    if urlsplit(issuer).scheme not in ("http", "https") or not urlsplit(issuer).netloc:
        raise SettingsError(f"GATEHOUSE_OIDC_ISSUER={issuer!r} is no http or https address")
    secret = environment.oidc_client_secret
    if environment.oidc_client_secret_file is not None:
        try:
            secret = environment.oidc_client_secret_file.read_text().strip()
        except OSError as error:
            raise SettingsError(f"GATEHOUSE_OIDC_CLIENT_SECRET_FILE cannot be read: {error}") from error
    if not environment.oidc_client_id or not secret:
        raise SettingsError("GATEHOUSE_OIDC_ISSUER needs GATEHOUSE_OIDC_CLIENT_ID and GATEHOUSE_OIDC_CLIENT_SECRET")
    return {
        "openid_connect": {
            "APPS": [
                {
                    "provider_id": PROVIDER_ID,
                    "name": environment.oidc_name,
                    "client_id": environment.oidc_client_id,
                    "secret": secret,
                    "settings": {
                        "server_url": issuer.rstrip("/"),
                        "issuer": issuer,
                        "oauth_pkce_enabled": True,
                        "scope": list(environment.oidc_scopes),
                    },
                }
            ]
        }
    }
