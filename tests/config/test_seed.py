"""First contents: made once, mended where something is missing, left alone where an operator decided."""

import stat
from pathlib import Path

import pytest

from config.up.seed import (
    CHECK_KEY_NAME,
    KEY_NAME,
    MEMBER_EMAIL,
    MODEL,
    OPERATOR_EMAIL,
    TENANT_SLUG,
    rotate_demo_key,
    seed,
)
from gpupool.models import Model, ModelVersion, Node
from gpupool.services.catalogue import set_replicas
from gpupool.services.nodes import authenticate_node
from tenants.actor import SYSTEM
from tenants.models import ApiKey, AuditEvent, Membership, Tenant, User
from tenants.services import digest_secret

pytestmark = pytest.mark.django_db


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tmp_path / "node-token"


def test_first_time_makes_everything_and_shows_secrets(token_file: Path) -> None:
    seeded = seed(node_name="here", token_file=token_file)
    operator, member = User.objects.get(email=OPERATOR_EMAIL), User.objects.get(email=MEMBER_EMAIL)
    assert seeded.operator_password is not None
    assert operator.check_password(seeded.operator_password)
    assert operator.may_operate
    assert seeded.member_password is not None
    assert member.check_password(seeded.member_password)
    assert not member.may_read_platform
    assert Membership.objects.get(user=member).tenant.slug == TENANT_SLUG
    assert seeded.api_key is not None
    assert seeded.check_key == seeded.api_key
    assert ApiKey.objects.get(digest=digest_secret(seeded.api_key)).name == KEY_NAME
    version = ModelVersion.objects.get(model__name=MODEL)
    assert (version.engine, version.replicas, version.device_kind) == ("llamacpp", 1, "cpu")
    assert seeded.model_wanted
    node = authenticate_node(token_file.read_text())
    assert node is not None
    assert node.name == seeded.node_name == "here"
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600


def test_second_time_changes_nothing_but_the_check_key(token_file: Path) -> None:
    first = seed(node_name="here", token_file=token_file)
    token = token_file.read_text()
    audited = AuditEvent.objects.count()
    second = seed(node_name="here", token_file=token_file)
    assert (second.operator_password, second.member_password, second.api_key) == (None, None, None)
    assert second.check_key != first.check_key
    assert token_file.read_text() == token
    assert AuditEvent.objects.count() == audited + 1
    seed(node_name="here", token_file=token_file)
    check = ApiKey.objects.get(name=CHECK_KEY_NAME)
    assert check.allowed_models == [MODEL]
    assert check.expires_at is not None


def test_lost_token_is_made_anew(token_file: Path) -> None:
    seed(node_name="here", token_file=token_file)
    old = token_file.read_text()
    token_file.unlink()
    seed(node_name="here", token_file=token_file)
    assert authenticate_node(token_file.read_text()) is not None
    assert authenticate_node(old) is None
    assert Node.objects.count() == 1


def test_operators_choice_is_kept(token_file: Path) -> None:
    seed(node_name="here", token_file=token_file)
    set_replicas(ModelVersion.objects.get(model__name=MODEL).pk, 0, actor=SYSTEM)
    again = seed(node_name="here", token_file=token_file)
    assert not again.model_wanted
    assert ModelVersion.objects.get(model__name=MODEL).replicas == 0
    assert Model.objects.count() == 1


def test_rotated_demo_key_replaces_all_earlier_ones(token_file: Path) -> None:
    with pytest.raises(Tenant.DoesNotExist):
        rotate_demo_key()
    seed(node_name="here", token_file=token_file)
    rotate_demo_key()
    newest = rotate_demo_key()
    usable = ApiKey.objects.filter(name=KEY_NAME, revoked_at__isnull=True)
    assert [key.pk for key in usable] == [newest.key.pk]
