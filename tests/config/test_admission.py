"""Settings of admission: a wrong one names itself and stops the start."""

from pathlib import Path

import pytest

from config.admission import admission_rule, signature_trust
from config.environment import Environment
from core.env import SettingsError, read
from gpupool.policies.admission import Rule
from gpupool.weights.signature import Trust

TRUST = {
    "GATEHOUSE_TRUSTED_ROOT": "/etc/gatehouse/trusted_root.json",
    "GATEHOUSE_SIGNATURE_IDENTITIES": "release@example.test,https://ci.example.test/build",
    "GATEHOUSE_SIGNATURE_ISSUER": "https://login.example.test",
}


def test_nothing_is_asked_and_nobody_trusted_by_default() -> None:
    environment = read(Environment, {})
    assert (admission_rule(environment), signature_trust(environment)) == (Rule.OFF, None)


def test_what_is_asked_and_who_is_trusted() -> None:
    environment = read(Environment, TRUST | {"GATEHOUSE_ADMISSION": "required"})
    assert admission_rule(environment) is Rule.REQUIRED
    assert signature_trust(environment) == Trust(
        Path("/etc/gatehouse/trusted_root.json"),
        ("release@example.test", "https://ci.example.test/build"),
        "https://login.example.test",
    )


def test_an_unknown_word_names_its_setting() -> None:
    with pytest.raises(SettingsError, match=r"GATEHOUSE_ADMISSION='strict' is none of off, required"):
        admission_rule(read(Environment, {"GATEHOUSE_ADMISSION": "strict"}))


@pytest.mark.parametrize("missing", TRUST)
def test_a_root_without_anybody_who_is_trusted_stops_the_start(missing: str) -> None:
    environ = {name: value for name, value in TRUST.items() if name != missing}
    with pytest.raises(SettingsError, match="belong together"):
        signature_trust(read(Environment, environ))
