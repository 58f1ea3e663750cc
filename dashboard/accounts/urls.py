"""Addresses of logging in and of one's own security. The names with an underscore are those that allauth looks for."""

from django.urls import path

from dashboard.access import own_security_page
from dashboard.accounts import invitations, log_in, provider, security

urlpatterns = [
    path("login/second-factor/", log_in.SecondFactorView.as_view(), name="mfa_authenticate"),
    path("login/passkey/", log_in.PasskeyLoginView.as_view(), name="mfa_login_webauthn"),
    path("login/link/<str:secret>/", log_in.link, name="login-link"),
    path("login/inactive/", log_in.inactive, name="account_inactive"),
    path("login/cancelled/", log_in.cancelled, name="socialaccount_login_cancelled"),
    path("oidc/<str:provider_id>/login/", provider.begin, name="openid_connect_login"),
    path("oidc/<str:provider_id>/login/callback/", provider.callback, name="openid_connect_callback"),
    path("invitations/<str:secret>/", invitations.accept, name="invitation"),
    path("security/", own_security_page(security.SecurityView.as_view()), name="mfa_index"),
    path(
        "security/confirm/",
        own_security_page(security.ConfirmPasswordView.as_view()),
        name="account_reauthenticate",
    ),
    path(
        "security/confirm/code/",
        own_security_page(security.ConfirmCodeView.as_view()),
        name="mfa_reauthenticate",
    ),
    path(
        "security/confirm/passkey/",
        own_security_page(security.ConfirmPasskeyView.as_view()),
        name="mfa_reauthenticate_webauthn",
    ),
    path("security/app/", own_security_page(security.AddAppView.as_view()), name="mfa_activate_totp"),
    path("security/app/remove/", own_security_page(security.RemoveAppView.as_view()), name="mfa_deactivate_totp"),
    path(
        "security/recovery-codes/",
        own_security_page(security.RecoveryCodesView.as_view()),
        name="mfa_view_recovery_codes",
    ),
    path(
        "security/recovery-codes/renew/",
        own_security_page(security.RenewRecoveryCodesView.as_view()),
        name="mfa_generate_recovery_codes",
    ),
    path("security/passkeys/add/", own_security_page(security.AddPasskeyView.as_view()), name="mfa_add_webauthn"),
    path(
        "security/passkeys/<int:pk>/remove/",
        own_security_page(security.RemovePasskeyView.as_view()),
        name="mfa_remove_webauthn",
    ),
    path("security/password/", security.password, name="account_change_password"),
]
