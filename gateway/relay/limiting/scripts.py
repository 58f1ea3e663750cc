"""The scripts that change counters in Valkey; see gateway.relay.limiting.layout for what they keep.

Each takes one argument, packed by MessagePack, and answers with one: a list whose first item is a word. Every script
but LOOK and CHECK answers `lost` where the caller's generation is not the present one, before it changes anything.
"""

import hashlib
from typing import Final, NamedTuple

from gateway.relay.limiting.prelude import PRELUDE


class Script(NamedTuple):
    """Its text and the digest it is called by."""

    text: bytes
    digest: str


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
    text = (PRELUDE + body).encode()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


ACQUIRE: Final = _script(_ACQUIRE)
REPORT: Final = _script(_REPORT)
LOOK: Final = _script(_LOOK)
JOIN: Final = _script(_JOIN)
LEAVE: Final = _script(_LEAVE)
CHECK: Final = _script(_CHECK)
LOADED: Final = (ACQUIRE, REPORT, LOOK, JOIN, LEAVE)
"""All that are called by their digest."""
