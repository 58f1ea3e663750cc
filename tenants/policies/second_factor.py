"""Who must have a second factor."""

OFF, PLATFORM, ALL = "off", "platform", "all"


def is_required(of: str, *, platform_role: str) -> bool:
    """`of` is the installation's setting: off, platform (people with a platform role) or all."""
    return of == ALL or (of == PLATFORM and platform_role != "")
