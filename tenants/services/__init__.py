"""Every write of this app."""

from tenants.services.access_tokens import NewAccessToken, create_access_token, delete_access_token
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.issuers import change_token_issuer, create_token_issuer, delete_token_issuer
from tenants.services.keys import NewKey, create_api_key, digest_secret, replace_api_key, revoke_api_key
from tenants.services.partitions import ensure_partitions
from tenants.services.tenants import (
    add_member,
    create_tenant,
    create_user,
    grant_model,
    remove_grant,
    set_response_retention,
    set_tenant_state,
)

__all__ = [
    "Conflict",
    "InvalidInput",
    "NewAccessToken",
    "NewKey",
    "add_member",
    "change_token_issuer",
    "create_access_token",
    "create_api_key",
    "create_tenant",
    "create_token_issuer",
    "create_user",
    "delete_access_token",
    "delete_token_issuer",
    "digest_secret",
    "ensure_partitions",
    "grant_model",
    "record_audit",
    "remove_grant",
    "replace_api_key",
    "revoke_api_key",
    "set_response_retention",
    "set_tenant_state",
]
