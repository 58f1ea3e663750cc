"""Tables: any order, page after page, over the whole set; addresses that make no sense harm nothing."""

import re
from urllib.parse import quote

import pytest
from django.db import connection
from django.http import HttpRequest
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from dashboard.tables import Column, Table, csv_response, read_page, safe_cell
from dashboard.tables import page as page_module
from tenants.models import Tenant

TABLE = Table(
    name="tenants",
    columns=[
        Column(key="slug", label="Slug", order="slug", value=lambda row: row.slug),
        Column(key="name", label="Name", order="name", value=lambda row: row.name),
        Column(key="made", label="Made", order="created_at", value=lambda row: row.created_at),
        Column(key="age", label="Age", order="pk"),
        Column(key="actions", hidden_label="Actions"),
    ],
    sort="-made",
    page_size=3,
)


def request(query: str = "") -> HttpRequest:
    return RequestFactory().get(f"/?{query}")


def fill(names: list[str]) -> None:
    Tenant.objects.all().delete()
    Tenant.objects.bulk_create([Tenant(slug=f"t{number}", name=name) for number, name in enumerate(names)])


def walk(sort: str) -> list[str]:
    """All rows, a page at a time, forwards; and back again to the first."""
    rows: list[str] = []
    pages: list[list[str]] = []
    query = f"sort={sort}"
    while True:
        page = read_page(TABLE, request(query), Tenant.objects.all())
        pages.append([row.slug for row in page.rows])
        rows += pages[-1]
        if page.older is None:
            break
        query = f"sort={sort}&after={quote(page.older)}"
    for before in reversed(pages[:-1]):
        assert page.newer is not None
        query = f"sort={sort}&after={quote(page.newer)}"
        page = read_page(TABLE, request(query), Tenant.objects.all())
        assert [row.slug for row in page.rows] == before
        assert page.older is not None
    assert page.newer is None
    return rows


@pytest.mark.django_db
@pytest.mark.shows("U3")
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    names=st.lists(st.sampled_from(["a", "b", "B", "ä", "", "=1+1", "zz"]), max_size=11),
    sort=st.sampled_from(["slug", "-slug", "name", "-name", "made", "-made", "age", "-age"]),
)
def test_pages_of_any_order_hold_every_row_once_and_lead_back(names: list[str], sort: str) -> None:
    fill(names)
    rows = walk(sort)
    column = TABLE.column(sort.removeprefix("-"))
    assert column is not None
    sign = "-" if sort.startswith("-") else ""
    whole = Tenant.objects.order_by(f"{sign}{column.order}", f"{sign}pk").values_list("slug", flat=True)
    assert rows == list(whole)


@pytest.mark.django_db
@pytest.mark.shows("U2")
@pytest.mark.parametrize("sort", ["slug", "-slug"])
def test_a_page_far_back_is_found_by_an_index_and_not_by_reading_those_before_it(sort: str) -> None:
    fill(["x"] * 9)
    first = read_page(TABLE, request(f"sort={sort}"), Tenant.objects.all())
    assert first.older is not None
    with connection.cursor() as cursor:
        for other in ("seqscan", "bitmapscan", "sort"):  # which is what a planner prefers for nine rows
            cursor.execute(f"SET LOCAL enable_{other} = off")
        with CaptureQueriesContext(connection) as queries:
            read_page(TABLE, request(f"sort={sort}&after={quote(first.older)}"), Tenant.objects.all())
        cursor.execute(f"EXPLAIN {queries[0]['sql']}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert re.search(r"Index Cond: \(\(?slug\)?\S* [<>]= ", plan), plan


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query",
    [
        "after=x",
        "after=",
        "sort=password",
        "sort=-",
        "sort=actions",
        "after=%00",
        "count=lots",
        "sort=-made&after=a:b:c",
    ],
)
def test_an_address_that_makes_no_sense_shows_the_first_page(query: str) -> None:
    fill(["a", "b", "c", "d"])
    page = read_page(TABLE, request(query), Tenant.objects.all())
    assert (page.sort, len(page.rows), page.first) == ("-made", 3, True)


@pytest.mark.django_db
def test_a_cursor_of_another_order_is_passed_over() -> None:
    fill(["a", "b", "c", "d"])
    page = read_page(TABLE, request("sort=name"), Tenant.objects.all())
    assert page.older is not None
    other = read_page(TABLE, request(f"sort=slug&after={quote(page.older)}"), Tenant.objects.all())
    assert other.first


@pytest.mark.django_db
@pytest.mark.shows("U2", "U3")
def test_many_rows_are_counted_up_to_a_limit_first_and_exactly_when_asked(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    monkeypatch.setattr(page_module, "COUNT_LIMIT", 4)
    fill(["x"] * 9)
    with django_assert_num_queries(2):
        page = read_page(TABLE, request(), Tenant.objects.all())
    assert (page.many, page.counted) == (True, 5)
    exact = read_page(TABLE, request("count=exact"), Tenant.objects.all())
    assert (exact.many, exact.counted) == (False, 9)


@pytest.mark.django_db
def test_the_sheet_holds_all_rows_in_the_order_of_the_page_and_computes_nothing() -> None:
    fill(["=HYPERLINK(1)", "b", "c", "d"])
    answer = csv_response(TABLE, request("sort=slug&format=csv"), Tenant.objects.all())
    lines = answer.content.decode().splitlines()
    assert lines[0] == "slug,name,made"
    assert [line.split(",")[0] for line in lines[1:]] == ["t0", "t1", "t2", "t3"]
    assert lines[1].split(",")[1] == "'=HYPERLINK(1)"


@given(st.text())
def test_no_cell_begins_as_a_formula_does(text: str) -> None:
    cell = safe_cell(text)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert cell.removeprefix("'") == text.removeprefix("'")


@pytest.mark.parametrize("sign", "＝＋－＠")  # full-width
def test_full_width_signs_are_formulas_to_spreadsheets_too(sign: str) -> None:
    assert safe_cell(f"{sign}1") == f"'{sign}1"


@pytest.mark.parametrize(("value", "cell"), [(-3, "-3"), (None, ""), (True, "true"), (1.5, "1.5")])
def test_numbers_stay_numbers(value: object, cell: str) -> None:
    assert safe_cell(value) == cell


@pytest.mark.django_db
def test_a_list_that_fits_on_one_page_is_not_counted_beside(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number, queries in ((0, 1), (3, 1), (4, 2)):
        fill(["x"] * number)
        with django_assert_num_queries(queries):
            page = read_page(TABLE, request(), Tenant.objects.all())
        assert (page.counted, page.many) == (number, False)
    with django_assert_num_queries(2):
        last = read_page(TABLE, request(f"after={quote(page.older or '')}"), Tenant.objects.all())
    assert (len(last.rows), last.counted) == (1, 4)
