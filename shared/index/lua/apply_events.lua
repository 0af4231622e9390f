-- Applies lifecycle events to the index, in order, each once.
--
-- KEYS[1]  forebay:{index}:meta   HASH; the prefix of every other key is derived from it
-- ARGV[1]  from      position up to which the caller had read before these events
-- ARGV[2]  to        position up to which it has read with them
-- ARGV[3]  token     '' while following; the rebuild's token while rebuilding
-- ARGV[4]  ttl_ms    time to live of the rebuild's token from now on
-- ARGV[5]  count     of events; then nine fields each:
--          op, seq, group, id, score, time, deadline_ms, workspace, extra
--          op E: waits (time: when it expires); S: started (time: when); F: finished (time: when)
--          (E and F: deadline_ms 1 says that the build is new); extra: '' or 'use occupancy' of its entry
-- returns  {status, watermark}: 'applied', 'gap' (from is ahead of the watermark), 'empty' (no index),
--          'rebuilding' (by another process), 'lost' (another holds the token)
-- cost     O(count * log(builds))
assert(#KEYS == 1 and #ARGV == 5 + 9 * tonumber(ARGV[5]), 'apply_events: 1 key, 5 args and 9 an event')
local meta = KEYS[1]
local from, to, token = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local wm = 0
if token == '' then
  local state = redis.call('HMGET', meta, 'ready', 'watermark')
  if not state[1] then return {'empty', 0} end
  if state[1] ~= '1' then return {redis.call('EXISTS', P .. 'rebuild') == 1 and 'rebuilding' or 'empty', 0} end
  wm = tonumber(state[2])
  if from > wm then return {'gap', wm} end
  if to <= wm then return {'applied', wm} end
else
  if redis.call('GET', P .. 'rebuild') ~= token then return {'lost', 0} end
  redis.call('PEXPIRE', P .. 'rebuild', ARGV[4])
end
local builds, expires, running = P .. 'builds', P .. 'expires', P .. 'running'
local deadlines, offered, idle = P .. 'deadlines', P .. 'offered', P .. 'idle'

-- Removes the build from its current state; returns the workspace that it was offered to.
local function leave(key, group, id)
  if queue_out(group, id) then
    redis.call('ZREM', expires, key)
    return
  end
  redis.call('ZREM', expires, key)
  local ran = redis.call('ZREM', running, key) == 1
  local was_offered = redis.call('ZREM', offered, key) == 1
  if ran then redis.call('ZREM', deadlines, key) end
  if not ran and not was_offered then return end
  local build = redis.call('HGET', builds, key)
  if build then
    count(group, build, '-')
    if ran then count_ended(group, build) end
  end
  local ws = vacate(key)
  if was_offered then return ws end
end

-- Whether the build was offered to this workspace, as every build is that this index dispatched. Then it keeps the
-- workspace, and what its group and its type count in progress.
local function starts_as_offered(key, ws)
  if redis.call('HGET', P .. 'offers', key) ~= ws or redis.call('ZREM', offered, key) == 0 then return false end
  redis.call('ZREM', expires, key)
  return true
end

-- The build's entry with the traits that it was offered with.
local function with_known_traits(key, entry)
  local before = redis.call('HGET', builds, key)
  if not before then return entry end
  return string.match(entry, '^%S+ %S+ %S+') .. (string.match(before, '^%S+ %S+ %S+( .*)$') or '')
end

for i = 0, tonumber(ARGV[5]) - 1 do
  local b = 6 + i * 9
  local op, seq, group, id, extra = ARGV[b], tonumber(ARGV[b + 1]), ARGV[b + 2], ARGV[b + 3], ARGV[b + 8]
  if seq > wm then
    local key = group .. '/' .. id
    local as_offered = op == 'S' and starts_as_offered(key, ARGV[b + 7])
    local freed = not as_offered and leave(key, group, id)
    local entry = ARGV[b + 1] .. ' ' .. ARGV[b + 4] .. ' ' .. ARGV[b + 5]
    if extra ~= '' then entry = entry .. ' ' .. extra end
    if op == 'E' then
      redis.call('HSET', builds, key, entry)
      queue_in(group, id, ARGV[b + 4])
      redis.call('ZADD', expires, ARGV[b + 5], key)
    elseif op == 'S' then
      entry = with_known_traits(key, entry)
      redis.call('HSET', builds, key, entry)
      redis.call('ZADD', running, ARGV[b + 5], key)
      redis.call('ZADD', deadlines, ARGV[b + 6], key)
      if not as_offered then
        count(group, entry, '')
        -- This index did not make the offer: a budget read before has changed.
        if not freed then
          redis.call('HINCRBY', P .. 'versions', group, 1)
          if sends_actions(entry) then redis.call('HINCRBY', P .. 'versions', '', 1) end
        end
        redis.call('SREM', idle, ARGV[b + 7])
        occupy(key, ARGV[b + 7])
        if freed then release(freed) end
      end
    else
      redis.call('HDEL', builds, key)
      if token == '' and ARGV[b + 7] ~= '' then
        redis.call('LPUSH', P .. 'ends:' .. group, ARGV[b + 5])
        redis.call('LTRIM', P .. 'ends:' .. group, 0, 49)
      end
      if ARGV[b + 7] ~= '' then release(ARGV[b + 7]) end
      if freed then release(freed) end
    end
    if token ~= '' or (op ~= 'S' and ARGV[b + 6] == '1') then
      local recent = P .. 'recent:' .. group
      redis.call('LPUSH', recent, id)
      redis.call('LTRIM', recent, 0, 999)
      redis.call('SADD', P .. 'seen', group)
    end
  end
end
if token == '' then redis.call('HSET', meta, 'watermark', ARGV[2]) end
return {'applied', to}
