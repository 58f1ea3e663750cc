"""YAML as plain data, within bounds: texts, lists and objects, and nothing that grows, repeats or runs.

Numbers, dates and truth values stay the texts that they are written as (version 1.10 is not 1.1); whoever knows what
a member means reads them.
"""

from typing import Any, Final

import yaml

MOST_BYTES: Final = 256 * 1024
_MOST_NODES: Final = 10_000
_DEEPEST: Final = 16


class BadYaml(ValueError):
    """It is not read; the message is a sentence."""


class _Loader(yaml.BaseLoader):
    """Refuses a member that is there twice: which of them was meant?"""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        if not all(isinstance(name, str) for name in names):
            raise BadYaml(f"A member's name is no text, in line {node.start_mark.line + 1}.")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadYaml(f"{twice[0][:80]!r} is there twice, in the object of line {node.start_mark.line + 1}.")
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def read_yaml(document: bytes) -> Any:
    """The one document of a file. Raises BadYaml."""
    if len(document) > MOST_BYTES:
        raise BadYaml(f"The file is larger than {MOST_BYTES // 1024} KiB.")
    try:
        text = document.decode()
        _check(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506  # BaseLoader makes texts, lists and objects only
    except UnicodeDecodeError as error:
        raise BadYaml("The file is not UTF-8.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise BadYaml(
            f"This is not YAML{where}: {getattr(error, 'problem', None) or 'a character is not allowed'}."
        ) from error
    except RecursionError as error:
        raise BadYaml("The file is nested too deep.") from error
    except BadYaml:
        raise
    except (ValueError, OverflowError) as error:  # an escape for no character, or a number of thousands of digits
        raise BadYaml("This is not YAML: an escape or a number in it is out of range.") from error


def _check(text: str) -> None:
    """Look at it piece by piece, before anything is made of it."""
    depth, documents = 0, 0
    for nodes, event in enumerate(yaml.parse(text, Loader=yaml.BaseLoader)):
        match event:
            case yaml.AliasEvent() | yaml.NodeEvent(anchor=str()):
                raise BadYaml("Anchors and aliases (& and *) are not read: write what is meant where it is meant.")
            case yaml.ScalarEvent(tag=str()) | yaml.CollectionStartEvent(tag=str()):
                raise BadYaml("Tags (!) are not read: write plain YAML.")
            case yaml.CollectionStartEvent():
                depth += 1
            case yaml.CollectionEndEvent():
                depth -= 1
            case yaml.DocumentStartEvent():
                documents += 1
            case _:
                pass
        if depth > _DEEPEST:
            raise BadYaml(f"The file is nested more than {_DEEPEST} deep.")
        if nodes > _MOST_NODES:
            raise BadYaml(f"The file has more than {_MOST_NODES} parts.")
        if documents > 1:
            raise BadYaml("The file has more than one document.")
