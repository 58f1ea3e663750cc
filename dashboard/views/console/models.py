"""Console: models by the names that applications use, their other names, and who may call them."""

from typing import Final
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.access import console_page, signed_in
from dashboard.catalogue_forms import AliasForm, GrantForm, ModelForm
from dashboard.filters import search_text
from dashboard.reads.models import adapters_of, grants_of, list_models, offered_tenants, versions_of
from dashboard.refusals import add_refusal
from dashboard.sheets import leave, posted, sheet
from dashboard.tables import Column, Facet, Table, csv_response, is_csv, read_page
from dashboard.tables.table import Filtered
from gpupool import services
from gpupool.models import Model, ModelAlias
from gpupool.reads import catalogue
from tenants.actor import Actor, user_actor
from tenants.models import Grant, Tenant
from tenants.services import Conflict, InvalidInput, grant_model
from tenants.services.grants import remove_grant

TABLE: Final = Table(
    name="console-models",
    sort="model",
    columns=(
        Column(key="model", label=gettext_lazy("Model"), order="name", value=lambda row: row.name),
        Column(
            key="versions",
            label=gettext_lazy("Versions"),
            order="version_count",
            value=lambda row: row.version_count,
            numeric=True,
        ),
        Column(
            key="serving",
            label=gettext_lazy("Serving"),
            order="serving_count",
            value=lambda row: row.serving_count,
            numeric=True,
        ),
        Column(
            key="ready",
            label=gettext_lazy("Ready instances"),
            order="ready_count",
            value=lambda row: row.ready_count,
            numeric=True,
        ),
        Column(
            key="aliases",
            label=gettext_lazy("Other names"),
            order="alias_count",
            value=lambda row: row.alias_count,
            numeric=True,
        ),
        Column(key="owner", label=gettext_lazy("Private to"), order="owner", value=lambda row: row.owner),
        Column(key="created", label=gettext_lazy("Created"), order="created_at", value=lambda row: row.created_at),
    ),
)


@console_page
@require_safe
def index(request: HttpRequest) -> HttpResponseBase:
    facets = [
        Facet.read(
            request,
            "serves",
            _("Serves"),
            [("yes", _("A version serves")), ("no", _("None serves"))],
            all_label=_("All"),
        ),
        Facet.read(
            request,
            "owner",
            _("Private"),
            [("none", _("Shared models")), ("some", _("Private models"))],
            all_label=_("All"),
        ),
    ]
    filtered = Filtered(search=search_text(request), placeholder=_("Name or other name"), facets=facets)
    rows = list_models({facet.key: facet.chosen for facet in facets}, search=filtered.search)
    if is_csv(request):
        return csv_response(TABLE, request, rows)
    return render(
        request,
        "console/models.html",
        {"page": read_page(TABLE, request, rows), "filtered": filtered, **_frame(request)},
    )


@console_page
@require_safe
def page(request: HttpRequest, model_id: UUID) -> HttpResponse:
    model = _model(model_id)
    return render(
        request,
        "console/model.html",
        {
            "model": model,
            "owner": Tenant.objects.filter(pk=model.tenant_id).first() if model.tenant_id else None,
            "versions": versions_of(model),
            "aliases": sorted(model.aliases.all(), key=lambda alias: alias.name),
            "adapters": adapters_of(model.pk),
            "grants": grants_of(model.name),
            **_frame(request),
        },
    )


@console_page
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest) -> HttpResponse:
    actor = _operator(request)
    form = ModelForm(posted(request))
    if request.method == "POST" and form.is_valid():
        values = dict(form.cleaned_data)
        try:
            model = services.create_model(values.pop("name"), actor=actor, **values)
        except (InvalidInput, Conflict) as error:
            add_refusal(form, error)
        else:
            messages.success(
                request,
                _("%(model)s is made. It is there for applications once a version of it serves.")
                % {"model": model.name},
            )
            return leave(request, "console-model", model.pk)
    return _form(request, "console/_model_new.html", form, title=_("Models"), back=reverse("console-models"))


@console_page
@require_http_methods(["GET", "POST"])
def add_alias(request: HttpRequest, model_id: UUID) -> HttpResponse:
    actor, model = _operator(request), _model(model_id)
    form = AliasForm(posted(request))
    if request.method == "POST" and form.is_valid():
        try:
            services.create_alias(model.pk, form.cleaned_data["name"], actor=actor)
        except (InvalidInput, Conflict) as error:
            add_refusal(form, error)
        else:
            said = _("%(alias)s is another name of %(model)s within a second.")
            messages.success(request, said % {"alias": form.cleaned_data["name"], "model": model.name})
            return leave(request, "console-model", model.pk)
    return _form(request, "console/_alias_new.html", form, model=model, **_back(model))


@console_page
@require_http_methods(["GET", "POST"])
def remove_alias(request: HttpRequest, alias_id: UUID) -> HttpResponse:
    actor = _operator(request)
    try:
        alias = ModelAlias.objects.select_related("model").get(pk=alias_id)
    except ModelAlias.DoesNotExist as error:
        raise Http404 from error
    if request.method == "POST":
        services.delete_alias(alias.pk, actor=actor)
        messages.success(request, _("%(alias)s is no name any more.") % {"alias": alias.name})
        return leave(request, "console-model", alias.model_id)
    return sheet(request, "console/_alias_remove.html", {"alias": alias, "model": alias.model, **_back(alias.model)})


@console_page
@require_http_methods(["GET", "POST"])
def grant(request: HttpRequest, model_id: UUID) -> HttpResponse:
    """A tenant may call the model: one click opens this, another one grants."""
    actor, model = _operator(request), _model(model_id)
    form = GrantForm(posted(request))
    if request.method == "POST" and form.is_valid():
        tenant = Tenant.objects.get(pk=form.cleaned_data["tenant"])
        if model.tenant_id is not None and model.tenant_id != tenant.pk:
            form.add_error("tenant", _("The model is another tenant's own."))
        else:
            try:
                grant_model(tenant, model_pattern=model.name, actor=actor)
            except (InvalidInput, Conflict) as error:
                add_refusal(form, error)
            else:
                said = _("%(tenant)s may call %(model)s within a second.")
                messages.success(request, said % {"tenant": tenant.name, "model": model.name})
                return leave(request, "console-model", model.pk)
    return _form(request, "console/_grant_new.html", form, model=model, **_back(model))


@console_page
@require_http_methods(["GET", "POST"])
def revoke(request: HttpRequest, model_id: UUID, grant_id: UUID) -> HttpResponse:
    """Take a grant back; whatever else its pattern matches goes with it, which the question says."""
    actor, model = _operator(request), _model(model_id)
    try:
        found = Grant.objects.select_related("tenant").get(pk=grant_id)
    except Grant.DoesNotExist as error:
        raise Http404 from error
    if request.method == "POST":
        remove_grant(found.pk, actor=actor)
        messages.success(request, _("The grant of %(tenant)s is taken back.") % {"tenant": found.tenant.name})
        return leave(request, "console-model", model.pk)
    wide = found.model_pattern != model.name
    return sheet(request, "console/_grant_remove.html", {"grant": found, "model": model, "wide": wide, **_back(model)})


def _form(request: HttpRequest, template: str, form: object, **context: object) -> HttpResponse:
    status = 422 if request.method == "POST" else 200
    return sheet(request, template, {"form": form, "tenants": offered_tenants(), **context}, status=status)


def _model(model_id: UUID) -> Model:
    try:
        return catalogue.list_models().get(pk=model_id)
    except Model.DoesNotExist as error:
        raise Http404 from error


def _operator(request: HttpRequest) -> Actor:
    user = signed_in(request)
    if not user.may_operate:
        raise PermissionDenied
    return user_actor(user.pk)


def _back(model: Model) -> dict[str, object]:
    return {"title": model.name, "back": reverse("console-model", args=[model.pk])}


def _frame(request: HttpRequest) -> dict[str, object]:
    return {
        "may_operate": signed_in(request).may_operate,
        "now": timezone.now(),
        "zone": str(timezone.get_current_timezone()),
    }
