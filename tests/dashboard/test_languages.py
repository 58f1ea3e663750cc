"""Both languages are complete, and the compiled catalogue is the one of the written catalogue."""

import ast
import gettext
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import Client
from django.utils.translation import gettext as translated
from django.utils.translation import override
from pytest_django import Settings

from dashboard import labels
from dashboard.slo_forms import ObjectiveForm
from gpupool.models import InstanceState, NodeState
from tenants.models import PlatformRole, SlaTier, TenantRole, TenantState
from tenants.policies.notices import NoticeKind
from tests.dashboard.people import person

ROOT = Path(__file__).parents[2]
MESSAGES = Path(settings.LOCALE_PATHS[0]) / "zh_Hans" / "LC_MESSAGES"
_FIELD = re.compile(r'^(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)? ?(".*")$')
_PLACE = re.compile(r"%\(\w+\)s|%s|%d")
_HALF_WIDTH = re.compile(r"[\u4e00-\u9fff] ?[,;:?]|[,;:?] ?[\u4e00-\u9fff]")
_OTHER_WORDS = {
    "词元": "token",
    "首个令牌": "token",
    "输入令牌": "token",
    "输出令牌": "token",
    "操作员": "平台管理员",
    "运维": "平台管理员",
    "超级管理员": "平台超级用户",
    "你": "您",
}
"""Words that the glossary has others for."""


@dataclass(frozen=True, slots=True)
class Entry:
    context: str
    text: str
    plural: str
    translation: str
    fuzzy: bool

    @property
    def key(self) -> tuple[str, str]:
        return self.context, self.text


def entries(path: Path) -> Iterator[Entry]:
    """Entries of a .po file, the header left out."""
    for block in path.read_text().split("\n\n"):
        fields: dict[str, str] = {}
        current = ""
        lines = [line for line in block.splitlines() if not line.startswith("#~")]
        for line in lines:
            if found := _FIELD.match(line):
                current = found.group(1) or current
                fields[current] = fields.get(current, "") + ast.literal_eval(found.group(2))
        if fields.get("msgid"):
            fuzzy = any(line.startswith("#,") and "fuzzy" in line for line in lines)
            translation = fields.get("msgstr", fields.get("msgstr[0]", ""))
            yield Entry(fields.get("msgctxt", ""), fields["msgid"], fields.get("msgid_plural", ""), translation, fuzzy)


def test_nothing_is_untranslated_or_fuzzy() -> None:
    found = list(entries(MESSAGES / "django.po"))
    assert len(found) > 150
    assert [entry.text for entry in found if entry.fuzzy or not entry.translation] == []


def test_translations_keep_their_places() -> None:
    for entry in entries(MESSAGES / "django.po"):
        # Chinese has one form for all numbers: that of the plural.
        said = entry.plural or entry.text
        assert set(_PLACE.findall(entry.translation)) == set(_PLACE.findall(said)), entry.text


def test_chinese_sentences_have_chinese_marks() -> None:
    found = [entry.translation for entry in entries(MESSAGES / "django.po") if _HALF_WIDTH.search(entry.translation)]
    assert found == [], "full-width commas, semicolons, colons and question marks stand beside Chinese characters"


@pytest.mark.parametrize(("other", "word"), _OTHER_WORDS.items())
def test_a_term_has_one_word(other: str, word: str) -> None:
    found = [entry.translation for entry in entries(MESSAGES / "django.po") if other in entry.translation]
    assert found == [], f"dashboard/locale/README.md says {word}"


def test_compiled_catalogue_is_fresh() -> None:
    with (MESSAGES / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for entry in entries(MESSAGES / "django.po"):
        told = compiled.pgettext(entry.context, entry.text) if entry.context else compiled.gettext(entry.text)
        if told == entry.text:  # plural forms are kept under both texts
            told = compiled.ngettext(entry.text, entry.plural, 1)
        assert told == entry.translation, "run the two commands of dashboard/locale/README.md"


@pytest.mark.skipif(shutil.which("xgettext") is None, reason="GNU gettext is not installed")
def test_every_text_of_the_pages_is_in_the_catalogue(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("config", "dashboard", "templates", "tenants"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.po", "*.mo"))
    settings.LOCALE_PATHS = [tmp_path / "locale"]
    (tmp_path / "locale").mkdir()
    shutil.rmtree(tmp_path / "dashboard" / "locale")
    monkeypatch.chdir(tmp_path)
    call_command("makemessages", locale=["zh_Hans"], verbosity=0)
    extracted = {entry.key for catalogue in tmp_path.rglob("django.po") for entry in entries(catalogue)}
    assert extracted == {entry.key for entry in entries(MESSAGES / "django.po")}


def test_texts_are_marked_by_names_that_makemessages_reads() -> None:
    """By any other name a text is never asked to be translated, and the catalogue looks complete without it."""
    others = [
        f"{path.relative_to(ROOT)}: {alias.name} as {alias.asname}"
        for folder in ("core", "tenants", "gpupool", "gateway", "dashboard", "config")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "django.utils.translation"
        for alias in node.names
        if alias.asname not in (None, "_")
    ]
    assert others == []


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (labels.INSTANCE_STATES, InstanceState),
        (labels.NODE_STATES, NodeState),
        (labels.TENANT_STATES, TenantState),
        (labels.TENANT_ROLES, TenantRole),
        (labels.SLA_TIERS, SlaTier),
        (labels.NOTICES, NoticeKind),
        (labels.PLATFORM_ROLES, [role for role in PlatformRole if role]),
    ],
)
def test_every_state_and_role_has_a_word(words: labels.Words, values: type[InstanceState]) -> None:
    assert set(words) == {str(value) for value in values}
    with override("zh-hans"):
        assert all(not str(word).isascii() for word in words.values())


def test_browser_language_is_followed_until_one_is_chosen(client: Client, db: None) -> None:
    page = client.get("/login/", headers={"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.5"}).content.decode()
    assert '<html lang="zh-hans"' in page
    client.post("/language/", {"language": "en", "next": "/login/"})
    page = client.get("/login/", headers={"Accept-Language": "zh-CN"}).content.decode()
    assert '<html lang="en"' in page


@pytest.mark.parametrize(("status", "path"), [(404, "/no/such/page"), (403, "/console/overview/")])
def test_error_pages_speak_the_language_too(client: Client, db: None, status: int, path: str) -> None:
    client.force_login(person("eve"))
    client.cookies["django_language"] = "zh-hans"
    response = client.get(path)
    assert response.status_code == status
    assert "返回首页" in response.content.decode()


def test_the_release_of_an_objective_is_not_the_verb() -> None:
    with override("zh-hans"):
        assert str(ObjectiveForm(releases=[]).fields["version_id"].label) != translated("Release")
