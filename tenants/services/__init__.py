"""Every write of this app."""

from tenants.digests import digest_secret
from tenants.services.access_tokens import NewAccessToken, create_access_token, delete_access_token
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.grants import grant_model, remove_expired_grants, remove_grant
from tenants.services.invitations import (
    NewInvitation,
    accept_invitation,
    accept_invitation_as_new,
    accept_open_invitations,
    create_invitation,
    withdraw_invitation,
)
from tenants.services.issuers import change_token_issuer, create_token_issuer, delete_token_issuer
from tenants.services.key_rotation import replace_api_key, rotate_api_key
from tenants.services.keys import NewKey, change_api_key, create_api_key, revoke_api_key
from tenants.services.members import change_member_role, remove_member
from tenants.services.partitions import ensure_partitions
from tenants.services.people import (
    NewLoginLink,
    change_password,
    change_person,
    create_login_link,
    create_person,
    reset_second_factor,
    use_login_link,
)
from tenants.services.role_mappings import apply_claims, create_role_mapping, delete_role_mapping, roles_given_by
from tenants.services.tenants import (
    add_member,
    create_tenant,
    create_user,
    set_tenant_state,
)

__all__ = [
    "Conflict",
    "InvalidInput",
    "NewAccessToken",
    "NewInvitation",
    "NewKey",
    "NewLoginLink",
    "accept_invitation",
    "accept_invitation_as_new",
    "accept_open_invitations",
    "add_member",
    "apply_claims",
    "change_api_key",
    "change_member_role",
    "change_password",
    "change_person",
    "change_token_issuer",
    "create_access_token",
    "create_api_key",
    "create_invitation",
    "create_login_link",
    "create_person",
    "create_role_mapping",
    "create_tenant",
    "create_token_issuer",
    "create_user",
    "delete_access_token",
    "delete_role_mapping",
    "delete_token_issuer",
    "digest_secret",
    "ensure_partitions",
    "grant_model",
    "record_audit",
    "remove_expired_grants",
    "remove_grant",
    "remove_member",
    "replace_api_key",
    "reset_second_factor",
    "revoke_api_key",
    "roles_given_by",
    "rotate_api_key",
    "set_tenant_state",
    "use_login_link",
    "withdraw_invitation",
]
