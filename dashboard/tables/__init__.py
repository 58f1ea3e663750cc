"""The data table of console and portal: sorted, filtered and paged by the server, its whole content as CSV.

A page makes a `Table` once, reads a `Page` of it from a request, and writes the rows in its own template between
`components/table_head.html` and `components/table_foot.html`.
"""

from dashboard.tables.page import COUNT_LIMIT, Page, read_page
from dashboard.tables.sheet import CSV_LIMIT, ask_worker, csv_response, is_csv, line_of, safe_cell
from dashboard.tables.table import Column, Facet, Filtered, Option, Table
from dashboard.tables.worker import sink_of_worker

__all__ = [
    "COUNT_LIMIT",
    "CSV_LIMIT",
    "Column",
    "Facet",
    "Filtered",
    "Option",
    "Page",
    "Table",
    "ask_worker",
    "csv_response",
    "is_csv",
    "line_of",
    "read_page",
    "safe_cell",
    "sink_of_worker",
]
