"""What is asked of models before they serve, from the process's settings."""

from config.environment import Environment
from core.env import SettingsError
from gpupool.policies.admission import Rule
from gpupool.weights.signature import Trust


def admission_rule(environment: Environment) -> Rule:
    """Raises SettingsError for an unknown word."""
    try:
        return Rule(environment.admission)
    except ValueError as error:
        words = ", ".join(rule.value for rule in Rule)
        raise SettingsError(f"GATEHOUSE_ADMISSION={environment.admission!r} is none of {words}") from error


def signature_trust(environment: Environment) -> Trust | None:
    """Raises SettingsError for a trusted root without anybody who is trusted, or the other way round."""
    told = (environment.trusted_root, environment.signature_identities, environment.signature_issuer)
    if not any(told):
        return None
    root, identities, issuer = told
    if root is None or not identities or not issuer:
        raise SettingsError(
            "GATEHOUSE_TRUSTED_ROOT, GATEHOUSE_SIGNATURE_IDENTITIES and GATEHOUSE_SIGNATURE_ISSUER belong together: "
            "a root vouches for everybody who has a certificate of it, so say whose signatures count"
        )
    return Trust(root, identities, issuer)
