"""What modules say in English, found in their text: for tests that pages know it all."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def spoken(modules: Iterable[str]) -> set[str]:
    """Texts of at least three words, with %s for values; docstrings are none."""
    return {text for module in modules for text in _texts(ROOT / module) if text.count(" ") >= 2}


def with_places(sentences: Iterable[str]) -> set[str]:
    """Sentences as `spoken` has them."""
    return {re.sub(r"%\(\w+\)s", "%s", one) for one in sentences}


def _texts(path: Path) -> Iterator[str]:
    passed: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Expr(value=ast.Constant()):
                passed.add(id(node.value))
            case ast.JoinedStr(values=parts):
                passed |= {id(part) for part in parts}
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "%s" for part in parts)
            case ast.Constant(value=str(text)) if id(node) not in passed:
                yield text
