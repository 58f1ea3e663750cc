"""What the keeper of limits changes in Valkey, in scripts: see limit_counters, which runs them. Times are in seconds.

Those that change counters have P and the keeper's token as their first arguments and say `done`, or why nothing was
changed: `lock` (it is another's), `lost` (so are the counters), `alive` (a process that was dead is back).
"""

from typing import Final

EXTEND: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
RELEASE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""

# ARGV: P, token, id, run. With an empty id `gen` is only taken away.
BEGIN: Final = """
local P = ARGV[1]
if redis.call('GET', P .. 'keeper') ~= ARGV[2] then return 'lock' end
redis.call('DEL', P .. 'gen')
if ARGV[3] ~= '' then
  redis.call('HSET', P .. 'gen', 'id', ARGV[3], 'state', 'rebuilding', 'since', redis.call('TIME')[1], 'run', ARGV[4])
end
return 'done'
"""

# ARGV: P, token, id, state that the generation must be in; then what each script says.
CHECK: Final = """
local P = ARGV[1]
if redis.call('GET', P .. 'keeper') ~= ARGV[2] then return 'lock' end
local gen = redis.call('HMGET', P .. 'gen', 'id', 'state')
if gen[1] ~= ARGV[3] or gen[2] ~= ARGV[4] then return 'lost' end
"""

# For each counter: name, when it expires (seconds since the epoch), number of fields, fields and values.
WRITE: Final = (
    CHECK
    + """
local at = 5
while at <= #ARGV do
  local key, fields = P .. ARGV[at], tonumber(ARGV[at + 2])
  for i = at + 3, at + 2 + 2 * fields, 2 do
    redis.call('HSET', key, ARGV[i], ARGV[i + 1])
  end
  redis.call('EXPIREAT', key, ARGV[at + 1])
  at = at + 3 + 2 * fields
end
return 'done'
"""
)

# Pairs of process and mark.
MARK: Final = (
    CHECK
    + """
for i = 5, #ARGV, 2 do
  redis.call('HSET', P .. 'marks', ARGV[i], ARGV[i + 1])
end
return 'done'
"""
)

# Process, then pairs of counter and units. Not of one that has joined meanwhile: it speaks for itself.
ORPHAN: Final = (
    CHECK
    + """
if redis.call('ZSCORE', P .. 'procs', ARGV[5]) then return 'done' end
for i = 6, #ARGV, 2 do
  redis.call('HINCRBY', P .. ARGV[i], 'held', ARGV[i + 1])
  redis.call('HINCRBY', P .. 'o:' .. ARGV[5], ARGV[i], ARGV[i + 1])
  redis.call('SADD', P .. 'orphans', ARGV[5])
end
return 'done'
"""
)

FINISH: Final = (
    CHECK
    + """
redis.call('HSET', P .. 'gen', 'state', 'ready')
return 'done'
"""
)

# ARGV: P, names of counters.
SNAPSHOT: Final = """
local P = ARGV[1]
local processes = redis.call('ZRANGE', P .. 'procs', 0, -1)
for _, process in ipairs(processes) do
  if redis.call('HEXISTS', P .. 'p:' .. process, 'partial') == 1 then return 'partial' end
end
local gen = redis.call('HMGET', P .. 'gen', 'id', 'state')
local orphans = {}
for i, process in ipairs(redis.call('SMEMBERS', P .. 'orphans')) do
  orphans[2 * i - 1] = process
  orphans[2 * i] = redis.call('HGETALL', P .. 'o:' .. process)
end
local counters = {}
for i = 2, #ARGV do
  local fields = redis.call('HMGET', P .. ARGV[i], 'used', 'held')
  counters[2 * i - 3] = fields[1] or '0'
  counters[2 * i - 2] = fields[2] or '0'
end
return {
  gen[1] or '', gen[2] or '', redis.call('TIME')[1], processes,
  redis.call('HGETALL', P .. 'through'), redis.call('HGETALL', P .. 'marks'), redis.call('HGETALL', P .. 'adopted'),
  orphans, counters,
}
"""

# Number of counters, for each its name, end of its period and difference; number of orphans, for each the process and
# the sequence up to which its rows are counted; then pairs of dead processes that held nothing, and such a sequence.
CORRECT: Final = (
    CHECK
    + """
local at = 5
local counters = tonumber(ARGV[at])
local orphans = at + 1 + 3 * counters
for i = orphans + 1, #ARGV, 2 do
  if redis.call('ZSCORE', P .. 'procs', ARGV[i]) then return 'alive' end
end
for i = at + 1, orphans - 1, 3 do
  local key, ends = P .. ARGV[i], tonumber(ARGV[i + 1])
  local used = redis.call('HINCRBY', key, 'used', ARGV[i + 2])
  if used < 0 then redis.call('HSET', key, 'used', 0) end
  if redis.call('HSETNX', key, 'end', ends) == 1 then redis.call('EXPIREAT', key, ends + 172800) end
end
local number = tonumber(ARGV[orphans])
for i = orphans + 1, #ARGV, 2 do
  local process = ARGV[i]
  if i <= orphans + 2 * number then
    local held = redis.call('HGETALL', P .. 'o:' .. process)
    for j = 1, #held, 2 do
      if redis.call('EXISTS', P .. held[j]) == 1 then
        local left = redis.call('HINCRBY', P .. held[j], 'held', -tonumber(held[j + 1]))
        if left < 0 then redis.call('HSET', P .. held[j], 'held', 0) end
      end
    end
    redis.call('DEL', P .. 'o:' .. process)
    redis.call('SREM', P .. 'orphans', process)
  end
  redis.call('HSET', P .. 'through', process, ARGV[i + 1])
end
return 'done'
"""
)
