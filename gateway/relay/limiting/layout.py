"""What stands in Valkey for limits, and who writes it when: names, fields, and the protocol between the parts.

All names begin with `{valkey_prefix}lim:` (here P). Time is Valkey's own, whole seconds since the epoch where nothing
else is said. Money is in millionths. A *process* is named by the hex of its id, the one of its usage spool.

Keys
----

- `P gen`, hash: `id` (hex uuid of the counters' generation), `state` (`rebuilding` or `ready`), `since`, and `run`,
  the `run_id` of the server (INFO server) that it was built on. Missing: the counters are lost.
- `P procs`, sorted set: process -> when it lapses (seconds with a fraction; 10 s after its last word).
- `P through`, hash: process -> last spool sequence whose charge is in `used` of the calendar counters.
- `P marks`, hash: process -> last spool sequence that the rebuilt base includes; written by the keeper only.
- `P p:{process}`, hash: `session` (a number from its last look on, by which messages sent before are refused),
  `joined` (the session that it last joined with), `report` (number of its last report): so that what was asked twice
  is done once; `partial`, while more messages of a report are to come. Expires a day after the last look.
- `P h:{process}`, hash: counter -> units of its `held` that are this process's.
- `P f:{process}`, hash: counter -> those of them that lay free (a slice, not reserved) when it last said so.
- `P o:{process}`, hash: counter -> units of its `held` that were a dead process's (calendar counters only), and `P
  orphans`, the set of those processes.
- Channel `P recall`: the message is a counter's name; processes report at once and give back what lies free of it.

Counters, named without P
-------------------------

- `c:{limit hex}:{period's start}`, hash: `used`, `held`, `free` (part of `held`), `end` (of the period), `refused`
  (when it last refused what it would have room for if it were empty). Expires two days after the period's end. used +
  held <= amount.
- `w:{limit hex}`, hash: a field for each second with its count, `used` (their sum), `head` (the oldest second that
  may have a field), `last` (the newest), `held`. A count leaves 61 s after its second. used + held <= amount.
- `b:{limit hex}`, hash: `level` (units, with a fraction), `at` (microseconds: when the level was that), `held`
  (granted as slices, already taken out of the level; only told). 0 <= level <= amount. Missing: full.
- `s:{limit hex}`, hash: `held`, `free` (part of it). held <= amount.

Missing fields are 0. A counter that is not there was never used, so a rebuild has to write only what is not 0.

What a charge does
------------------

Calendar: the bound is `held` of the period that holds the moment of admission, by Valkey's clock; when settled, what
was used moves to `used` of the same period, the rest is given back. Minute: the bound is in `used`, in the second of
the admission, as soon as the process tells it, until then in `held` (a slice); a refund lowers the same second, as
long as it is in the window. Bucket: taken from the level when granted; a refund raises it, to the capacity at most.
Standing: one unit of `held` from admission to the end.

A sweep (in any script, when a process's lapse has passed): its `h` goes. Standing: released. Minute: held -> used in
the current second. Bucket: nothing. Calendar: stays `held`, and is noted under `o:{process}`.

Generations: what the keeper does, and what processes do
--------------------------------------------------------

Every script refuses (`lost`) while `gen` is missing, or is another than the caller's. A server that was restarted or
replaced has forgotten all scripts; before a process loads them it compares `run` with the server's `run_id` and
deletes `gen` when they differ: counters out of an old file are not trusted. (No field `run`: not compared.)

1. Keeper finds `gen` missing: removes every key under P but its own, then writes `gen` with a new id, state
   `rebuilding`, `since` and `run`.
2. Processes say a word each 0.5 s at least, and so hear of it; then they look each 0.25 s. In `rebuilding` a process
   *joins*: it is entered in `procs`, and declares as `held` of each counter the sum of its open reservations and of
   those settled whose sequence the ledger has not acknowledged to it. Nothing is granted (503). Buckets: nothing is
   declared yet.
3. Keeper waits at least 1 s from `since`, then reads the ledger *in one database snapshot*: the mark of each process
   (tenants' ledger marks, 0 without rows) and the sums of all rows up to it since the period's start (and not before
   the limit's `counts_from`). It writes `used` and `end` of calendar counters, seconds, `used`, `head`, `last` of
   minute counters (a row counts in the second of its admission, its id's time, rounded up; by 61 s it is gone),
   `level` and `at` of buckets (a simulation, or 0: never too much), and `marks` of *all* processes that have rows. It
   leaves `held` as it is. Last, in the same MULTI or script that checks that `gen` is still its own, `state` becomes
   `ready`. Rows of dead processes that are still in spools are not in the base: the keeper writes their bounds to
   `o:{process}`, `orphans` and `held`, or waits for their spools to be drained first.
4. Processes that see `ready` join again: held becomes the sum of open reservations (calendar, standing); settled ones
   above max(marks, through)[process] become `used` in their period; of minute counters open ones and settled ones
   above the mark are counted in the second of their admission; buckets are debited with the same. `through` is set to
   the last settled sequence. A process that joins late does the same; what it declares is never refused, so that a
   counter may exceed its amount by what was admitted in the generation before.

A process that was swept and lives joins in the same way, in the same generation. So that nothing is counted twice:

- Orphans (keeper, at any time in `ready`): for a process in `orphans`, absent from `procs`, whose rows are all in the
  ledger: in one script add its rows above `through[process]` to `used`, subtract `o:{process}` from `held`, set
  `through[process]` to the mark that was counted, delete `o:{process}`, remove it from `orphans`. If it lives after
  all, its join skips what `through` covers. A join deletes `o:{process}`, its units, and the member itself.
- Reconcile: `used` is the sum of ledger rows up to `through[process]` of each process. A report brings all counters
  that a process has to tell and `through` in one script call, except when more than REPORT_COUNTERS are due: then
  `through` moves with the last call, and until then `partial` says that `used` is ahead of it. So nobody compares.
"""

from typing import Final, NamedTuple
from uuid import UUID

from gateway.relay.rows import LimitRow
from tenants.policies.periods import period_at

AREA: Final = "lim:"
"""After the installation's prefix."""

LAPSE_SECONDS: Final = 10
RENEW_SECONDS: Final = 0.5
"""Much less than the lapse: a process has to hear of a lost generation, and join the next, while that is rebuilt."""

SPEND_SECONDS: Final = 8.0
"""How long after a renewal (asked, not answered) slices may be spent; before the lapse, by any clock."""

WINDOW_SECONDS: Final = 60
KEPT_AFTER_END_SECONDS: Final = 2 * 86_400
REPORT_COUNTERS: Final = 200
"""In one message, which takes about as many times 50 us: meanwhile Valkey answers nobody, and all have a deadline."""

REBUILDING: Final = "rebuilding"
READY: Final = "ready"
MOST: Final = 2**53 - 1
"""Scripts count in doubles; a greater amount is as good as none."""

CALENDAR: Final = "c"
MINUTE: Final = "w"
BUCKET: Final = "b"
STANDING: Final = "s"

GENERATION: Final = "gen"
PROCESSES: Final = "procs"
THROUGH: Final = "through"
MARKS: Final = "marks"
RECALL: Final = "recall"

_KINDS: Final = {"day": CALENDAR, "month": CALENDAR, "minute": MINUTE, "bucket": BUCKET, "standing": STANDING}


class Counter(NamedTuple):
    """Where a limit is counted. `start` and `end` of the calendar period, seconds since the epoch; 0 for others."""

    name: str
    kind: str
    start: int = 0
    end: int = 0


def area(prefix: str) -> str:
    """P, for an installation's prefix."""
    return prefix + AREA


def recall_channel(prefix: str) -> str:
    """Where processes are asked to give back."""
    return area(prefix) + RECALL


def counter_of(limit: LimitRow, now: float) -> Counter:
    """The counter that a request admitted at `now` (seconds since the epoch) is charged to."""
    kind = _KINDS[limit.window]
    if kind == CALENDAR:
        period = period_at(limit.window, limit.time_zone, now)
        return calendar_counter(limit.id, int(period.start), int(period.end))
    return Counter(f"{kind}:{limit.id.hex}", kind)


def calendar_counter(limit_id: UUID, start: int, end: int) -> Counter:
    """The counter of a limit's period."""
    return Counter(f"{CALENDAR}:{limit_id.hex}:{start}", CALENDAR, start, end)


def holdings(process_hex: str) -> str:
    """Key of what a process holds, without P."""
    return f"h:{process_hex}"


def orphaned(process_hex: str) -> str:
    """Key of what a dead process held in calendar counters."""
    return f"o:{process_hex}"


def session(process_hex: str) -> str:
    """Key of a process's numbers."""
    return f"p:{process_hex}"
