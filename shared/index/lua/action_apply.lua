-- Applies events of executions to the index, in order, each once.
--
-- ARGV[1]  from      position up to which the caller had read before these events
-- ARGV[2]  to        position up to which it has read with them
-- ARGV[3]  token     '' while following; the rebuild's token while rebuilding
-- ARGV[4]  ttl_ms    time to live of the rebuild's token from now on
-- ARGV[5]  now_ms
-- ARGV[6]  count     of events; then fourteen fields each:
--          op, seq, key, pool, priority (from 0 on), expires_ms, cost (thousandths of ESU), length (its cost to its
--          invocation), invocation, merge (join key, or ''), executor, record, demand,
--          used (actual minus estimated cost to its invocation)
--          op W: waits, initially or again; U: unchanged, with another record; H: one more copy waits; C: the copy on
--          executor has ended; F: finished, by executor or ''
-- returns  {status, watermark, {key, executor, ...}, {key, ...}}: 'applied', 'gap' (from is ahead of the watermark),
--          'empty' (no index), 'rebuilding' (by another), 'lost' (another's token); executions that ended while other
--          executors still hold them; executions that wait since these events, and did not before
-- cost     O(count * log(executions))
assert(#KEYS == 1 and #ARGV == 6 + 14 * tonumber(ARGV[6]), 'action_apply: 1 key, 6 args and 14 an event')
local from, to, token, now = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[5])
local wm = 0
if token == '' then
  local state = redis.call('HMGET', KEYS[1], 'ready', 'watermark')
  if not state[1] then return {'empty', 0, {}, {}} end
  if state[1] ~= '1' then
    return {redis.call('EXISTS', P .. 'rebuild') == 1 and 'rebuilding' or 'empty', 0, {}, {}}
  end
  wm = tonumber(state[2])
  if from > wm then return {'gap', wm, {}, {}} end
  if to <= wm then return {'applied', wm, {}, {}} end
else
  if redis.call('GET', P .. 'rebuild') ~= token then return {'lost', 0, {}, {}} end
  redis.call('PEXPIRE', P .. 'rebuild', ARGV[4])
end

-- The start tag of an execution: invocations of a group with the same priority take turns according to their
-- cost (start-time fair queueing). Each start advances the group's virtual time; a new invocation begins there.
-- If an execution costs less than estimated, its invocation is credited, but never so much that its own
-- executions overtake each other.
local function tag(key, pool, invocation, length)
  local tags = P .. 'tags:' .. pool .. ' ' .. group_of(key)
  local known = redis.call('HMGET', tags, '', 'i' .. invocation, 'l' .. invocation)
  local start = math.max(tonumber(known[1] or 0), tonumber(known[2] or 0), tonumber(known[3] or 0))
  redis.call('HSET', tags, 'i' .. invocation, whole(start + tonumber(length)), 'l' .. invocation, whole(start))
  return start % TAGS
end

local astray, fresh = {}, {}
for i = 0, tonumber(ARGV[6]) - 1 do
  local b = 7 + i * 14
  local op, seq, key = ARGV[b], ARGV[b + 1], ARGV[b + 2]
  if tonumber(seq) > wm then
    local executor, merge = ARGV[b + 10], ARGV[b + 9]
    local known, old_score, _, old_cost, old_pool = entry(key)
    local function keep(score)
      local pool, expires, cost = ARGV[b + 3], ARGV[b + 5], ARGV[b + 6]
      redis.call('HSET', P .. 'live', key, table.concat({seq, score, expires, cost, pool}, ' '))
      redis.call('HSET', P .. 'records', key, ARGV[b + 11])
      redis.call('HSET', P .. 'demands', key, ARGV[b + 12])
      redis.call('ZADD', P .. 'positions', seq, key)
      if merge ~= '' then redis.call('HSET', P .. 'merge', merge, key) end
    end
    local function score_of(tags) return whole(tonumber(ARGV[b + 4]) * TAGS + tags) end
    if op == 'F' then
      if known then
        unwait(key, old_pool)
        for _, holder in ipairs(unclaim(key, nil, old_pool, old_cost, now)) do
          if holder ~= executor then
            astray[#astray + 1] = key
            astray[#astray + 1] = holder
          end
        end
        local tags = P .. 'tags:' .. old_pool .. ' ' .. group_of(key)
        local field = 'i' .. ARGV[b + 8]
        if tonumber(ARGV[b + 13]) ~= 0 and redis.call('HEXISTS', tags, field) == 1 then
          redis.call('HINCRBY', tags, field, ARGV[b + 13])
        end
        for _, name in ipairs({'live', 'records', 'demands'}) do redis.call('HDEL', P .. name, key) end
        redis.call('ZREM', P .. 'positions', key)
      end
      if known and merge ~= '' then
        if redis.call('HGET', P .. 'merge', merge) == key then redis.call('HDEL', P .. 'merge', merge) end
        if redis.call('GET', P .. 'joining:' .. merge) == key then redis.call('DEL', P .. 'joining:' .. merge) end
      end
    else
      local pool = ARGV[b + 3]
      local score = score_of(known and old_score % TAGS or tag(key, pool, ARGV[b + 8], ARGV[b + 7]))
      local waited = known and unwait(key, old_pool)
      if known and op == 'W' then
        unclaim(key, nil, old_pool, old_cost, now)
      elseif known and op == 'C' then
        unclaim(key, executor, old_pool, old_cost, now)
      end
      -- The current holders are accounted with the old cost; correct them to the new cost.
      local held = known and #holders(key) or 0
      if held > 0 and old_cost ~= ARGV[b + 6] then
        hold(old_pool, group_of(key), held * (tonumber(ARGV[b + 6]) - tonumber(old_cost)), now)
      end
      if op == 'H' then redis.call('ZREM', P .. 'hedges', key) end
      keep(score)
      -- A rebuilt index does not know the holders yet: one copy waits until their heartbeats arrive.
      if op == 'W' or op == 'H' or waited or held == 0 then
        wait(key, score, ARGV[b + 5], pool)
        if not waited then fresh[#fresh + 1] = key end
      end
    end
  end
end
if token == '' then redis.call('HSET', KEYS[1], 'watermark', ARGV[2]) end
return {'applied', to, astray, fresh}
