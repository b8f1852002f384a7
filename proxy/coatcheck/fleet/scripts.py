"""The steps that Redis takes as one: each a Lua script, with all keys of a fleet in one slot.

`head` is a hash: `epoch`, `number` and `digest` of the last entry, `genesis` (sealed: which fleet's, which
epoch), `base` (the number up to which `snapshot` goes). `over` holds sessions that were closed within ten
minutes: longer than a daemon goes on without hearing that. `log` is a stream whose ids are `epoch-number`.
A script writes in any case, also the one that only listens: a primary that has lost its replicas and is told
to refuse writes then (min-replicas-to-write) must not go on being listened to.
"""

from typing import Final

LISTEN: Final = """
-- KEYS head log leases renewals members; ARGV epoch number renewals-after member count
local time = redis.call('TIME')
redis.call('ZADD', KEYS[5], time[1], ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', time[1] - 30)
local head = redis.call('HMGET', KEYS[1], 'epoch', 'number', 'digest', 'genesis', 'base')
local entries, renewals = {}, {}
if head[1] and head[1] == ARGV[1] then
  entries = redis.call('XRANGE', KEYS[2], '(' .. ARGV[1] .. '-' .. ARGV[2], '+', 'COUNT', ARGV[5])
  renewals = redis.call('XRANGE', KEYS[4], '(' .. ARGV[3], '+', 'COUNT', ARGV[5])
end
return {time[1] .. '.' .. string.format('%06d', time[2]), redis.call('ZCARD', KEYS[5]), head, entries,
        renewals, redis.call('XLEN', KEYS[2])}
"""
APPEND: Final = """
-- KEYS head log leases over; ARGV epoch number digest new-digest sealed closed…
local head = redis.call('HMGET', KEYS[1], 'epoch', 'number', 'digest')
if head[1] ~= ARGV[1] or head[2] ~= ARGV[2] or head[3] ~= ARGV[3] then return 0 end
local number = tonumber(ARGV[2]) + 1
redis.call('XADD', KEYS[2], ARGV[1] .. '-' .. string.format('%.0f', number), 's', ARGV[5])
redis.call('HSET', KEYS[1], 'number', string.format('%.0f', number), 'digest', ARGV[4])
local time = redis.call('TIME')
for i = 6, #ARGV do
  redis.call('HDEL', KEYS[3], ARGV[i])
  redis.call('ZADD', KEYS[4], time[1], ARGV[i])
end
if #ARGV > 5 then redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', time[1] - 600) end
return 1
"""
FOUND: Final = """
-- KEYS head log leases renewals snapshot; ARGV seen-epoch seen-number seen-digest epoch genesis digest sealed
local head = redis.call('HMGET', KEYS[1], 'epoch', 'number', 'digest')
if (head[1] or '') ~= ARGV[1] or (head[2] or '') ~= ARGV[2] or (head[3] or '') ~= ARGV[3] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
redis.call('HSET', KEYS[1], 'epoch', ARGV[4], 'genesis', ARGV[5], 'base', '0')
redis.call('HSET', KEYS[1], 'number', '1', 'digest', ARGV[6])
redis.call('XADD', KEYS[2], ARGV[4] .. '-1', 's', ARGV[7])
return 1
"""
RENEW: Final = """
-- KEYS head leases renewals over; ARGV epoch kept, then id and sealed lease of each session
-- One that is over, which whoever renews it has not heard yet, would keep its lease for ever.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 2 do
  if not redis.call('ZSCORE', KEYS[4], ARGV[i]) then
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
    redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[2], '*', 'i', ARGV[i], 's', ARGV[i + 1])
  end
end
return 1
"""
INSTALL: Final = """
-- KEYS head log snapshot new; ARGV epoch number margin
local head = redis.call('HMGET', KEYS[1], 'epoch', 'base')
if head[1] ~= ARGV[1] or tonumber(head[2] or '0') >= tonumber(ARGV[2]) then
  redis.call('DEL', KEYS[4])
  return 0
end
redis.call('RENAME', KEYS[4], KEYS[3])
redis.call('PERSIST', KEYS[3])
redis.call('HSET', KEYS[1], 'base', ARGV[2])
local from = tonumber(ARGV[2]) + 1 - tonumber(ARGV[3])
if from > 1 then redis.call('XTRIM', KEYS[2], 'MINID', ARGV[1] .. '-' .. string.format('%.0f', from)) end
return 1
"""
SETTLE: Final = """
-- KEYS members, then limits; ARGV member, then for each limit: what kind, and how much
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local answers = {}
for i = 2, #KEYS do
  local kind, amount = ARGV[2 * i - 2], tonumber(ARGV[2 * i - 1])
  if kind == 'spent' then
    local tat = math.max(tonumber(redis.call('GET', KEYS[i]) or '0'), now) + amount
    if amount > 0 then
      redis.call('SET', KEYS[i], string.format('%.6f', tat), 'PX', math.ceil((tat - now) * 1000) + 1000)
    end
    answers[#answers + 1] = string.format('%.6f', tat - now)
  else
    if amount > 0 then redis.call('HSET', KEYS[i], ARGV[1], amount) end
    if amount == 0 then redis.call('HDEL', KEYS[i], ARGV[1]) end
    redis.call('EXPIRE', KEYS[i], 60)
    local found, others = redis.call('HGETALL', KEYS[i]), 0
    for j = 1, #found, 2 do
      if found[j] ~= ARGV[1] and redis.call('ZSCORE', KEYS[1], found[j]) then
        others = others + tonumber(found[j + 1])
      end
    end
    answers[#answers + 1] = tostring(others)
  end
end
return answers
"""
BOARDS: Final = """
-- KEYS boards members; ARGV member, its board (empty: what stands there stands), 1 when the others are wanted
if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
redis.call('EXPIRE', KEYS[1], 60)
local found, others = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #found, 2 do
  if not redis.call('ZSCORE', KEYS[2], found[i]) then
    redis.call('HDEL', KEYS[1], found[i])
  elseif ARGV[3] == '1' and found[i] ~= ARGV[1] then
    others[#others + 1] = found[i]
    others[#others + 1] = found[i + 1]
  end
end
return others
"""
COMMANDS: Final = (
    "evalsha", "eval", "script|load", "ping", "time", "wait", "xread", "xrange", "xadd", "xlen", "xtrim",
    "hset", "hget", "hmget", "hgetall", "hdel", "del", "rename", "expire", "persist", "zadd", "zcard",
    "zremrangebyscore", "zscore", "get", "set",
)  # fmt: skip
"""All that a daemon's user must be allowed."""
