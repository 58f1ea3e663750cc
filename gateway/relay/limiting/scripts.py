"""The scripts that change counters in Valkey; see gateway.relay.limiting.layout for what they keep.

Each takes one argument, packed by MessagePack, and answers with one: a list whose first item is a word. Every script
but LOOK and CHECK answers `lost` where the caller's generation is not the present one, before it changes anything.
"""

import hashlib
from typing import Final, NamedTuple

from gateway.policies.slices import NEAR_RESERVATIONS, SLICE_SHARE
from gateway.relay.limiting.layout import KEPT_AFTER_END_SECONDS, LAPSE_SECONDS, WINDOW_SECONDS


class Script(NamedTuple):
    """Its text and the digest it is called by."""

    text: bytes
    digest: str


_CONSTANTS: Final = (
    f"local WINDOW, LAPSE, KEPT = {WINDOW_SECONDS}, {LAPSE_SECONDS}, {KEPT_AFTER_END_SECONDS}\n"
    f"local NEAR, SHARE = {NEAR_RESERVATIONS}, {SLICE_SHARE}\n"
)

_PRELUDE: Final = """
local input = cmsgpack.unpack(ARGV[1])
local P, me = input[1], input[2]
local time = redis.call('TIME')
local now = tonumber(time[1])
local micros = now * 1000000 + tonumber(time[2])
local moment = string.format('%d.%06d', now, tonumber(time[2]))

local function number(value) return tonumber(value) or 0 end
local function answer(...) return cmsgpack.pack({...}) end

-- The second that a minute counter stands at, after what is too old has left it. Its time never goes back within a
-- window: a clock set back by more than that starts anew.
local function roll(key)
  local state = redis.call('HMGET', key, 'used', 'head', 'last', 'held')
  local used, head, last = number(state[1]), tonumber(state[2]) or now, tonumber(state[3]) or now
  local held, second = number(state[4]), now
  if last > now then
    if last - now > WINDOW then
      redis.call('DEL', key)
      used, head = 0, now
      if held > 0 then redis.call('HSET', key, 'held', held) end
    else
      second = last
    end
  end
  local floor = second - WINDOW
  if head < floor then
    while head < floor and used > 0 do
      local count = tonumber(redis.call('HGET', key, head))
      if count then
        used = used - count
        redis.call('HDEL', key, head)
      end
      head = head + 1
    end
    if head < floor then head = floor end
    redis.call('HSET', key, 'used', used, 'head', head)
  end
  return used, held, head, second
end

-- Count in a second of the window, or less; what is older than the window is of no account.
local function count(key, at, units)
  local used, held, head, second = roll(key)
  if at > second then at = second end
  if at < second - WINDOW or units == 0 then return end
  local present = number(redis.call('HGET', key, at))
  if present + units > 0 then
    redis.call('HSET', key, at, present + units)
  else
    units = -present
    redis.call('HDEL', key, at)
  end
  if at < head then head = at end
  redis.call('HSET', key, 'used', used + units, 'head', head, 'last', second)
end

local function level_of(key, capacity, refill)
  local state = redis.call('HMGET', key, 'level', 'at')
  local level, at = tonumber(state[1]), tonumber(state[2])
  if not level or not at then return capacity end
  return math.min(capacity, level + math.max(0, micros - at) * refill / 1000000)
end

local function set_level(key, capacity, refill, level)
  redis.call('HSET', key, 'level', string.format('%.17g', level), 'at', micros)
  if refill > 0 then
    redis.call('EXPIRE', key, math.min(31536000, math.ceil(capacity / refill) + 60))
  end
end

-- More (or less) of a counter's field, never below 0; what is 0 is not there.
local function add(key, field, units)
  if units ~= 0 and redis.call('HINCRBY', key, field, units) <= 0 then redis.call('HDEL', key, field) end
end

local function touch(key, kind, finish)
  if kind == 'c' then
    if redis.call('HSETNX', key, 'end', finish) == 1 then redis.call('EXPIREAT', key, finish + KEPT) end
  elseif kind == 'w' then
    redis.call('EXPIRE', key, 3 * WINDOW)
  end
end

-- Give back what a process held: after its lapse, or before it says anew what it holds.
local function release(process, lapsed)
  local orphans = 0
  local held = redis.call('HGETALL', P .. 'h:' .. process)
  for i = 1, #held, 2 do
    local name, units = held[i], tonumber(held[i + 1])
    local key, kind = P .. name, string.sub(name, 1, 1)
    if redis.call('EXISTS', key) == 1 then
      if kind == 'c' and lapsed then
        add(P .. 'o:' .. process, name, units)
        orphans = orphans + 1
      else
        add(key, 'held', -units)
        if kind == 'w' and lapsed then count(key, now, units) end
      end
    end
  end
  local free = redis.call('HGETALL', P .. 'f:' .. process)
  for i = 1, #free, 2 do add(P .. free[i], 'free', -tonumber(free[i + 1])) end
  redis.call('DEL', P .. 'h:' .. process, P .. 'f:' .. process)
  if orphans > 0 then redis.call('SADD', P .. 'orphans', process) end
end

local function sweep()
  for _, process in ipairs(redis.call('ZRANGEBYSCORE', P .. 'procs', '-inf', moment, 'LIMIT', 0, 8)) do
    redis.call('ZREM', P .. 'procs', process)
    release(process, true)
  end
end

local function renew()
  redis.call('ZADD', P .. 'procs', string.format('%d.%06d', now + LAPSE, tonumber(time[2])), me)
  return redis.call('ZCARD', P .. 'procs')
end

local function counted()
  local mark = number(redis.call('HGET', P .. 'marks', me))
  return math.max(mark, number(redis.call('HGET', P .. 'through', me)))
end

-- Whether the caller may go on: `lost`, `swept` or nil.
local function objection(gen, session)
  local present = redis.call('HMGET', P .. 'gen', 'id', 'state')
  if present[1] ~= gen or present[2] ~= 'ready' then return 'lost' end
  sweep()
  if not redis.call('ZSCORE', P .. 'procs', me) then return 'swept' end
  local numbers = redis.call('HMGET', P .. 'p:' .. me, 'session', 'joined')
  if number(numbers[1]) ~= session or number(numbers[2]) ~= session then return 'swept' end
end

-- How much of a counter is left, used and held.
local function standing(key, kind, amount, refill)
  if kind == 'w' then
    local used, held = roll(key)
    return amount - used - held, used, held
  elseif kind == 'b' then
    local level = level_of(key, amount, refill)
    return level, amount - math.floor(level), number(redis.call('HGET', key, 'held'))
  end
  local state = redis.call('HMGET', key, 'used', 'held')
  local used, held = number(state[1]), number(state[2])
  return amount - used - held, used, held
end

-- A slice of what is left, of at most `wish`, for a process that has `free` of it already.
local function slice(left, wish, largest, free, live)
  if wish <= 0 or left < NEAR * largest then return 0 end
  return math.max(0, math.min(wish, math.floor(left * SHARE / live) - free))
end
"""

_ACQUIRE: Final = """
local gen, session, recall, records = input[3], input[4], input[5], input[6]
local refusal = objection(gen, session)
if refusal then return answer(refusal, moment) end
local lefts, refused = {}, {}
for i, record in ipairs(records) do
  local name, kind, amount, first, finish, need = unpack(record, 1, 6)
  local key = P .. name
  if kind == 'c' and (now < first or now >= finish) then return answer('period', moment) end
  local left, used, held = standing(key, kind, amount, first)
  lefts[i] = left
  if need > left then
    local reset = 1
    if kind == 'c' then
      reset = finish - now
    elseif kind == 'b' then
      reset = need > amount and 0 or (need - left) / math.max(first, 1e-9)
    elseif kind == 'w' then
      local _, _, head, second = roll(key)
      local fields, freed = {}, left
      for at = head, second do fields[#fields + 1] = at end
      reset = 0
      if need <= amount then
        for j, units in ipairs(redis.call('HMGET', key, unpack(fields))) do
          freed = freed + number(units)
          if freed >= need then
            reset = math.max(1, fields[j] + WINDOW + 1 - second)
            break
          end
        end
        if reset == 0 then reset = 1 end
      end
    end
    local mine = number(redis.call('HGET', P .. 'h:' .. me, name))
    local others, sure = held - mine, kind == 'w' or kind == 'b'
    local idle = others
    if not sure then
      idle = number(redis.call('HGET', key, 'free')) - number(redis.call('HGET', P .. 'f:' .. me, name))
    end
    local hope = 0
    if need <= left + idle then hope = 2 elseif need <= left + others then hope = 1 end
    if hope == 2 or (recall and hope == 1) then redis.call('PUBLISH', P .. 'recall', name) end
    if kind == 'c' and hope < 2 and need <= amount then  -- for those who tell people of it
      redis.call('HSET', key, 'refused', now)
      touch(key, kind, finish)
    end
    refused[#refused + 1] = {i - 1, math.floor(left), used, held, reset, hope}
  end
end
local live = renew()
if #refused > 0 then return answer('no', moment, live, refused) end
local granted = {}
for i, record in ipairs(records) do
  local name, kind, amount, first, finish, need, wish, largest, free = unpack(record, 1, 9)
  local key, left = P .. name, lefts[i] - need
  local extra = slice(left, wish, largest, free, live)
  if kind == 'w' then
    if need > 0 then count(key, now, need) end
    add(key, 'held', extra)
    add(P .. 'h:' .. me, name, extra)
  elseif kind == 'b' then
    set_level(key, amount, first, left - extra)
    add(key, 'held', extra)
    add(P .. 'h:' .. me, name, extra)
  else
    add(key, 'held', need + extra)
    add(P .. 'h:' .. me, name, need + extra)
    add(key, 'free', extra)
    add(P .. 'f:' .. me, name, extra)
  end
  touch(key, kind, finish)
  granted[i] = {math.floor(left - extra), extra}
end
return answer('ok', moment, live, granted)
"""
# Input: P, process, generation, session, recall,
# [[name, kind, amount, start or refill, end, need, wish, largest, free]].
# Answers: lost | swept | period, moment; no, moment, live, [[index, left, used, held, reset, hope]];
# ok, moment, live, [[left, slice]].

_REPORT: Final = """
local gen, session, serial, through, records, more = input[3], input[4], input[5], input[6], input[7], input[8]
local refusal = objection(gen, session)
if refusal then return answer(refusal, moment) end
local live = renew()
local again = number(redis.call('HGET', P .. 'p:' .. me, 'report')) >= serial
if not again then redis.call('HSET', P .. 'p:' .. me, 'report', serial) end
if more then
  redis.call('HSET', P .. 'p:' .. me, 'partial', 1)
else
  redis.call('HDEL', P .. 'p:' .. me, 'partial')
end
local results = {}
for i, record in ipairs(records) do
  local name, kind, amount, first, finish, used, given, raised, free, wish, largest, seconds = unpack(record, 1, 12)
  local key, mine = P .. name, P .. 'h:' .. me
  local extra = 0
  if again then
    wish = 0
  else
    given = math.min(given, number(redis.call('HGET', mine, name)))
    add(key, 'held', -given)
    add(mine, name, -given)
    if kind == 'c' then
      add(key, 'used', used)
    elseif kind == 'w' then
      for j = 1, #seconds, 2 do count(key, seconds[j], seconds[j + 1]) end
    elseif kind == 'b' and raised ~= 0 then
      set_level(key, amount, first, math.max(0, math.min(amount, level_of(key, amount, first) + raised)))
    end
  end
  local left = standing(key, kind, amount, first)
  if kind ~= 'c' or (now >= first and now < finish) then extra = slice(left, wish, largest, free, live) end
  if extra > 0 then
    add(key, 'held', extra)
    add(mine, name, extra)
    if kind == 'b' then set_level(key, amount, first, left - extra) end
  end
  if not again and (kind == 'c' or kind == 's') then
    local told = number(redis.call('HGET', P .. 'f:' .. me, name))
    add(key, 'free', free + extra - told)
    add(P .. 'f:' .. me, name, free + extra - told)
  end
  if redis.call('EXISTS', key) == 1 then touch(key, kind, finish) end
  results[i] = {math.floor(left - extra), extra}
end
if through > number(redis.call('HGET', P .. 'through', me)) then redis.call('HSET', P .. 'through', me, through) end
return answer('ok', moment, live, results)
"""
# Input: P, process, generation, session, report's number, through, [[name, kind, amount, start or refill, end, used,
# given up of held, raised level, free after, wish, largest, [second, units, ...]]], whether another message belongs to
# this one. Answers as ACQUIRE, without `no`.

_LOOK: Final = """
local session = input[3]
local present = redis.call('HMGET', P .. 'gen', 'id', 'state')
if not present[1] then return answer('lost', moment) end
local mine = P .. 'p:' .. me
local numbers = redis.call('HMGET', mine, 'session', 'joined', 'report')
session = math.max(session, number(numbers[1]) + 1)
redis.call('HSET', mine, 'session', session)
redis.call('EXPIRE', mine, 86400)
sweep()
local swept = 1
if redis.call('ZSCORE', P .. 'procs', me) then
  swept = 0
  renew()
end
return answer(
  'ok', moment, present[1], present[2] or '', session, number(numbers[2]), number(numbers[3]), counted(), swept)
"""
# Input: P, process, the least number of the next session. From then on nothing is heard that was sent before.
# Answers: lost, moment; ok, moment, generation, state, session, last session that joined, last report, counted, swept.

_JOIN: Final = """
local gen, state, session, seen, through, records = input[3], input[4], input[5], input[6], input[7], input[8]
local present = redis.call('HMGET', P .. 'gen', 'id', 'state')
if present[1] ~= gen or present[2] ~= state then return answer('lost', moment) end
sweep()
if counted() ~= seen then return answer('again', moment) end
local numbers = redis.call('HMGET', P .. 'p:' .. me, 'session', 'joined')
if number(numbers[1]) ~= session or number(numbers[2]) >= session then return answer('again', moment) end
release(me, false)
local orphaned = redis.call('HGETALL', P .. 'o:' .. me)
for i = 1, #orphaned, 2 do
  if redis.call('EXISTS', P .. orphaned[i]) == 1 then add(P .. orphaned[i], 'held', -tonumber(orphaned[i + 1])) end
end
redis.call('DEL', P .. 'o:' .. me)
redis.call('SREM', P .. 'orphans', me)
for _, record in ipairs(records) do
  local name, kind, amount, first, finish, used, held, seconds = unpack(record, 1, 8)
  local key = P .. name
  add(key, 'held', held)
  add(P .. 'h:' .. me, name, held)
  if kind == 'c' then
    add(key, 'used', used)
  elseif kind == 'w' then
    for j = 1, #seconds, 2 do count(key, seconds[j], seconds[j + 1]) end
  elseif kind == 'b' and used ~= 0 then
    set_level(key, amount, first, math.max(0, math.min(amount, level_of(key, amount, first) - used)))
  end
  if redis.call('EXISTS', key) == 1 then touch(key, kind, finish) end
end
redis.call('HSET', P .. 'p:' .. me, 'joined', session)
redis.call('HDEL', P .. 'p:' .. me, 'partial')
redis.call('EXPIRE', P .. 'p:' .. me, 86400)
if state == 'ready' and through > number(redis.call('HGET', P .. 'through', me)) then
  redis.call('HSET', P .. 'through', me, through)
end
return answer('ok', moment, renew())
"""
# Input: P, process, generation, state, session, counted, through,
# [[name, kind, amount, start or refill, end, used, held, [second, units, ...]]].
# Answers: lost | again, moment; ok, moment, live.

_LEAVE: Final = """
local gen, session = input[3], input[4]
local refusal = objection(gen, session)
if refusal then return answer(refusal, moment) end
if redis.call('EXISTS', P .. 'h:' .. me) == 0 then
  redis.call('ZREM', P .. 'procs', me)
  redis.call('DEL', P .. 'f:' .. me)
end
return answer('ok', moment)
"""
# Input: P, process, generation, session. A process that still holds something lapses instead.

_CHECK: Final = """
local run = redis.call('HGET', P .. 'gen', 'run')
if run and run ~= string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') then
  redis.call('DEL', P .. 'gen')
  return answer('lost', moment)
end
return answer('ok', moment)
"""
# Input: P, process. Run by EVAL before the others are loaded.


def _script(body: str) -> Script:
    text = (_CONSTANTS + _PRELUDE + body).encode()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


ACQUIRE: Final = _script(_ACQUIRE)
REPORT: Final = _script(_REPORT)
LOOK: Final = _script(_LOOK)
JOIN: Final = _script(_JOIN)
LEAVE: Final = _script(_LEAVE)
CHECK: Final = _script(_CHECK)
LOADED: Final = (ACQUIRE, REPORT, LOOK, JOIN, LEAVE)
"""All that are called by their digest."""
