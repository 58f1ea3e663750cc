"""What all scripts of limits begin with: the counters' arithmetic, and who holds what of them."""

from typing import Final

from gateway.policies.slices import NEAR_RESERVATIONS, SLICE_SHARE
from gateway.relay.limiting.layout import KEPT_AFTER_END_SECONDS, LAPSE_SECONDS, WINDOW_SECONDS

_CONSTANTS: Final = (
    f"local WINDOW, LAPSE, KEPT = {WINDOW_SECONDS}, {LAPSE_SECONDS}, {KEPT_AFTER_END_SECONDS}\n"
    f"local NEAR, SHARE = {NEAR_RESERVATIONS}, {SLICE_SHARE}\n"
)

_FUNCTIONS: Final = """
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

PRELUDE: Final = _CONSTANTS + _FUNCTIONS
"""Reads the one argument, and the time; defines what the scripts call."""
