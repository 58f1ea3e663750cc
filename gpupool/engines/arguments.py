"""Engine arguments into a room's own struct, with refusals that name the argument."""

from typing import TypeVar

import msgspec

from gpupool.engines.base import EngineArgs, EngineArgumentsRefused

S = TypeVar("S", bound=msgspec.Struct)


def parse_struct(engine_args: EngineArgs, kind: type[S], engine: str) -> S:
    """Raises EngineArgumentsRefused with a sentence that names the argument and what it may be."""
    known = kind.__struct_fields__
    for name in engine_args:
        if name not in known:
            raise EngineArgumentsRefused(f"{engine} takes no argument {name!r}; it takes {', '.join(known)}.")
    try:
        return msgspec.convert(dict(engine_args), kind)
    except msgspec.ValidationError as error:
        raise EngineArgumentsRefused(f"{engine} does not take these arguments: {error}.") from error


def options(members: dict[str, object]) -> list[str]:
    """Command-line options: None and False are left out, True is the option alone."""
    argv: list[str] = []
    for option, value in members.items():
        if value is True:
            argv.append(option)
        elif value is not None and value is not False:
            argv += [option, str(value)]
    return argv
