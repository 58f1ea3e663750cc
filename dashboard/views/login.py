"""Logging in with a password."""

from django.contrib.auth import views

from dashboard.forms import LoginForm


class LoginView(views.LoginView):
    """Django's own, which follows `next` only within this site and gives the session a new key."""

    form_class = LoginForm
    redirect_authenticated_user = True
