"""Django's settings, from the typed environment."""

import hashlib
from typing import Any, Final

from csp.constants import NONCE

from config.admission import admission_rule, signature_trust
from config.database import database_setting
from config.environment import BASE_DIR, environment
from config.log_in import log_in_settings
from config.mail import mail_settings
from core.env import SettingsError
from core.telemetry.logging import configure_logging
from gpupool.admission_settings import AdmissionSettings

GATEHOUSE: Final = environment()
"""The typed process settings, for code that runs under Django."""

DEBUG = GATEHOUSE.debug
ALLOWED_HOSTS = list(GATEHOUSE.allowed_hosts)
CSRF_TRUSTED_ORIGINS = list(GATEHOUSE.trusted_origins)


def _secret_key() -> str:
    if GATEHOUSE.secret_key:
        return GATEHOUSE.secret_key
    try:
        return (GATEHOUSE.var_dir / "secret_key").read_text().strip()
    except FileNotFoundError:
        # Enough for commands that sign nothing; web refuses to start without one (config.asgi).
        return "unset-" + hashlib.sha256(str(BASE_DIR).encode()).hexdigest()
    except OSError as error:
        raise SettingsError(f"the secret key under {GATEHOUSE.var_dir} cannot be read: {error}") from error


SECRET_KEY = _secret_key()

INSTALLED_APPS = [
    "config.apps.ConfigConfig",
    "dashboard.apps.DashboardConfig",
    "gateway.apps.GatewayConfig",
    "gpupool.apps.GpupoolConfig",
    "tenants.apps.TenantsConfig",
    "core.apps.CoreConfig",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_prometheus",
    "csp",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "config.apps.BackofficeConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
]

MIDDLEWARE = [
    "core.api.request_ids.RequestIdMiddleware",
    "gateway.api.request_log.RequestLogMiddleware",
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "core.api.static_files.StaticFilesMiddleware",
    "csp.middleware.CSPMiddleware",
    "dashboard.csp.WrittenStylesMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "dashboard.viewing.ViewAsMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]

ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
AUTH_USER_MODEL = "tenants.User"
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"
globals().update(log_in_settings(GATEHOUSE))
REQUIRE_SECOND_FACTOR_OF = GATEHOUSE.require_mfa
MODEL_ADMISSION = AdmissionSettings(admission_rule(GATEHOUSE), signature_trust(GATEHOUSE))

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "dashboard.context.shell",
                "csp.context_processors.nonce",
            ],
        },
    }
]

DATABASES = {"default": database_setting(GATEHOUSE.database_url, statement_timeout_ms=GATEHOUSE.statement_timeout_ms)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
    "django.contrib.auth.hashers.ScryptPasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "dashboard.accounts.passwords.UnlikeTheirName"},
    {"NAME": "dashboard.accounts.passwords.LongEnough", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
LANGUAGE_COOKIE_AGE = 365 * 24 * 3600  # seconds; without it the choice ends with the browser's session
LANGUAGE_COOKIE_SAMESITE = "Lax"
LOCALE_PATHS = [BASE_DIR / "dashboard" / "locale"]
TIME_ZONE = GATEHOUSE.time_zone
USE_I18N = True
USE_TZ = True

STATIC_URL = "/static/"
STATIC_ROOT = GATEHOUSE.var_dir / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True

globals().update(mail_settings(GATEHOUSE.smtp_url, GATEHOUSE.mail_from))

_scratch: str = GATEHOUSE.valkey_scratch_url or ""
CACHES: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": _scratch,
        "KEY_PREFIX": GATEHOUSE.valkey_prefix + "cache",
        "OPTIONS": {"socket_connect_timeout": 1, "socket_timeout": 1},  # seconds; a frozen one must hold up no log-in
    }
    if _scratch
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
}
CHANNEL_LAYERS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [_scratch], "prefix": GATEHOUSE.valkey_prefix + "channels"},
    }
    if _scratch
    else {"BACKEND": "channels.layers.InMemoryChannelLayer"}
}
CELERY_BROKER_URL = _scratch or "memory://"
CELERY_BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": GATEHOUSE.valkey_prefix + "celery:"}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        # The first one's challenge is what strangers are told with their 401; sessions have none.
        "tenants.api.authentication.AccessTokenAuthentication",
        "tenants.api.authentication.BrowserAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["core.api.bodies.JsonBodyParser"],
    "DEFAULT_SCHEMA_CLASS": "core.api.schema.ControlSchema",
    "EXCEPTION_HANDLER": "gateway.api.problems.render_problem",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Gatehouse",
    "DESCRIPTION": "One OpenAI-compatible door to a pool of shared GPUs, and the control API behind it.",
    "VERSION": "0.1.0",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": r"/api",  # what comes after it groups the operations
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "TenantRoleEnum": "tenants.models.TenantRole",
        "PlatformRoleEnum": "tenants.models.PlatformRole",
        "RoleSourceEnum": "tenants.models.RoleSource",
        "AdjustmentKindEnum": "tenants.models.AdjustmentKind",
        "RequestKindEnum": "tenants.models.RequestKind",
        "NoticeKindEnum": "tenants.api.notices._KINDS",
        "SlaTierEnum": "tenants.models.SlaTier",
        "ObjectiveKindEnum": "gateway.api.objectives._KINDS",
        "ActionEnum": [(action, action) for action in ("deploy", "embed", "infer", "manage", "train")],
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "gateway.api.openapi.describe_problems",
    ],
}

# Cookies ignore ports: without a name of its own, a second clone on this host would log people out of the first.
_COOKIE_SUFFIX = hashlib.sha256(b"cookie names" + SECRET_KEY.encode()).hexdigest()[:8]
SESSION_COOKIE_NAME = f"gatehouse-session-{_COOKIE_SUFFIX}"
CSRF_COOKIE_NAME = f"gatehouse-csrf-{_COOKIE_SUFFIX}"
# A browser that reached us by https must not tell its session to whoever listens to http.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = GATEHOUSE.public_web_url.startswith("https://")
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'", NONCE],
        # Pages with charts get more: see dashboard.csp. No script may be inline without the nonce.
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:", "blob:"],
        "connect-src": ["'self'"],
        "font-src": ["'self'"],
        "object-src": ["'none'"],
        "base-uri": ["'self'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
    }
}
PROMETHEUS_EXPORT_MIGRATIONS = False

configure_logging(level=GATEHOUSE.log_level, style=GATEHOUSE.log_format)
LOGGING_CONFIG = None
