import pytest

from tenants.actor import SYSTEM
from tenants.models import ApiKey, AuditEvent
from tenants.services import revoke_api_key
from tenants.services.errors import InvalidInput
from tenants.services.spent_keys import delete_spent_key
from tests.factories import make_key, make_tenant


@pytest.mark.django_db
def test_only_a_key_that_no_longer_works_is_deleted() -> None:
    key = make_key(make_tenant()).key
    with pytest.raises(InvalidInput, match="revoke it first"):
        delete_spent_key(key.pk, actor=SYSTEM)
    revoke_api_key(key.pk, actor=SYSTEM)
    delete_spent_key(key.pk, actor=SYSTEM)
    assert not ApiKey.objects.filter(pk=key.pk).exists()
    assert AuditEvent.objects.filter(action="api_key.deleted").count() == 1
