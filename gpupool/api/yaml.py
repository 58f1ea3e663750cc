"""Bodies in YAML, for model cards: as files are written, read within bounds."""

from typing import Any, Final

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from gpupool.policies.plain_yaml import MOST_BYTES, BadYaml, read_yaml

MEDIA_TYPE: Final = "application/yaml"


class YamlParser(BaseParser):
    """RFC 9512. Everything that is no list or object comes as a text."""

    media_type = MEDIA_TYPE

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        """Raises ParseError."""
        try:
            return read_yaml(stream.read(MOST_BYTES + 1))
        except BadYaml as error:
            raise ParseError(str(error)) from error
