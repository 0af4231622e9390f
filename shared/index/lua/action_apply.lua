-- Applies events of executions to the index, in order, each once.
--
-- ARGV[1]  from      position up to which the caller had read before these events
-- ARGV[2]  to        position up to which it has read with them
-- ARGV[3]  token     '' while following; the rebuild's token while rebuilding
-- ARGV[4]  ttl_ms    time to live of the rebuild's token from now on
-- ARGV[5]  now_ms
-- ARGV[6]  doubt_ms  when a grant that its executor has not confirmed is in doubt
-- ARGV[7]  count     of events; then fourteen fields each:
--          op, seq, key, required (id of its requirements), rank (policy::actions::rank), expires_ms, cost (thousandths of ESU), charge (its cost to its
--          flow, or a fixed place: =number), flow, merge (join key, or ''), executor, record, demand,
--          used (actual minus estimated cost to its flow)
--          op W: waits, initially or again; U: unchanged, with another record; H: one more copy waits; C: the copy on
--          executor has ended; F: finished, by executor or ''
-- ARGV[...] grants of new executions among the events, eight fields each: key, executor, when another copy is due (0:
--          never), milli-ESU that it holds there, number of the last grant to the executor that the caller knows of,
--          pool of the executor, notice of the grant or '', maximum number of executions that the executor holds.
--          An execution that cannot be granted waits.
-- returns  {status, watermark, {key, executor, ...}, applied, {{seq, number, {notice, ...}}, ...}, followed}: 'applied',
--          'gap' (from is ahead of the watermark), 'empty' (no index), 'rebuilding' (by another), 'lost' (another's
--          token); executions that ended while other executors still hold them; 2 if this call applied the events, 1 if
--          a part was applied before, 0 if all were; the number of each grant, or {0, 0, {}} if it waits, or {0, number,
--          notices} if that is the number of a grant unknown to the caller: with the notices of all grants that the
--          caller missed, as far as they are kept, or {0, -1, {}} if the executor is full; 1 if other processes follow
-- cost     O(count * log(executions))
local first_grant = 8 + 14 * tonumber(ARGV[7])
assert(#KEYS == 1 and #ARGV >= first_grant - 1 and (#ARGV + 1 - first_grant) % 8 == 0,
  'action_apply: 1 key, 7 args, 14 an event and 8 a grant')
local from, to, token, now = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[5])
local wm, open = 0, false
if token == '' then
  local state = redis.call('HMGET', KEYS[1], 'ready', 'watermark', 'hold')
  if not state[1] then return {'empty', 0, {}, 0, {}, 0} end
  if state[1] ~= '1' then
    return {redis.call('EXISTS', P .. 'rebuild') == 1 and 'rebuilding' or 'empty', 0, {}, 0, {}, 0}
  end
  wm, open = tonumber(state[2]), tonumber(state[3] or 0) <= now
  if from > wm then return {'gap', wm, {}, 0, {}, 0} end
  if to <= wm then return {'applied', wm, {}, 0, {}, 0} end
else
  if redis.call('GET', P .. 'rebuild') ~= token then return {'lost', 0, {}, 0, {}, 0} end
  redis.call('PEXPIRE', P .. 'rebuild', ARGV[4])
end

-- The start tag of an execution: flows of a group with the same rank take turns according to their cost (start-time fair
-- queueing). Each start advances the group's virtual time; a new flow begins there, and advances it by its part of the queue:
-- otherwise ever new flows would always come first. If an execution costs less than estimated, its flow is credited, but
-- never so much that its own executions overtake each other.
local function tag(key, flow, charge)
  if string.sub(charge, 1, 1) == '=' then return tonumber(string.sub(charge, 2)) end
  local tags = tags_of(key)
  local known = redis.call('HMGET', tags, '', 'i' .. flow, 'l' .. flow)
  local time = tonumber(known[1] or 0)
  local start = math.max(time, tonumber(known[2] or 0), tonumber(known[3] or 0))
  redis.call('HSET', tags, 'i' .. flow, whole(start + tonumber(charge)), 'l' .. flow, whole(start))
  local others = tonumber(redis.call('HGET', P .. 'backlog', group_of(key)) or 0)
  if not known[2] and others > 0 then
    redis.call('HSET', tags, '', whole(time + math.ceil(tonumber(charge) / (others + 1))))
  end
  return start % TAGS
end

local astray, grants, granted = {}, {}, {}
for b = first_grant, #ARGV, 8 do
  grants[ARGV[b]] = b
  granted[(b - first_grant) / 8 + 1] = {0, 0, {}}
end

-- Whether the grant at ARGV[at] is possible: the caller knows the room of its executor, which is not full.
local function is_possible(at)
  if not open then return false end
  if knows_room(ARGV[at + 1], ARGV[at + 4]) then
    if not is_full(ARGV[at + 1], ARGV[at + 7]) then return true end
    granted[(at - first_grant) / 8 + 1] = {0, -1, {}}
    return false
  end
  granted[(at - first_grant) / 8 + 1] = {0, last_grant[ARGV[at + 1]], missed(ARGV[at + 1], ARGV[at + 4])}
  return false
end

for i = 0, tonumber(ARGV[7]) - 1 do
  local b = 8 + i * 14
  local op, seq, key = ARGV[b], ARGV[b + 1], ARGV[b + 2]
  if tonumber(seq) > wm then
    local executor, merge = ARGV[b + 10], ARGV[b + 9]
    local known, old_score, _, old_cost, before = entry(key)
    local function keep(score, cost)
      redis.call('HSET', P .. 'live', key, table.concat({seq, score, ARGV[b + 5], cost, ARGV[b + 3]}, ' '))
      redis.call('HSET', P .. 'records', key, ARGV[b + 11])
      redis.call('HSET', P .. 'demands', key, ARGV[b + 12])
      move(known, seq)
      if merge ~= '' then redis.call('HSET', P .. 'merge', merge, key) end
    end
    local function score_of(tags) return whole(tonumber(ARGV[b + 4]) * TAGS + tags) end
    if op == 'F' then
      if known then
        unwait(key, before)
        for _, holder in ipairs(unclaim(key, nil, before, old_cost, now)) do
          if holder ~= executor then
            astray[#astray + 1] = key
            astray[#astray + 1] = holder
          end
        end
        local tags = tags_of(key)
        local field = 'i' .. ARGV[b + 8]
        if tonumber(ARGV[b + 13]) ~= 0 and redis.call('HEXISTS', tags, field) == 1 then
          redis.call('HINCRBY', tags, field, ARGV[b + 13])
        end
        for _, name in ipairs({'live', 'records', 'demands'}) do redis.call('HDEL', P .. name, key) end
        move(known, nil)
      end
      if known and merge ~= '' then
        if redis.call('HGET', P .. 'merge', merge) == key then redis.call('HDEL', P .. 'merge', merge) end
        if redis.call('GET', P .. 'joining:' .. merge) == key then redis.call('DEL', P .. 'joining:' .. merge) end
      end
    else
      local required, given = ARGV[b + 3], grants[key]
      if given and op == 'W' and not known and is_possible(given) then
        -- It starts before anything waits, so it has the first start tag.
        keep(score_of(0), ARGV[given + 3])
        local number = grant(key, ARGV[given + 1], ARGV[given + 5], ARGV[given + 3], ARGV[given + 2], ARGV[6], ARGV[given + 6], now)
        granted[(given - first_grant) / 8 + 1] = {tonumber(seq), number, {}}
      else
        local score = score_of(known and old_score % TAGS or tag(key, ARGV[b + 8], ARGV[b + 7]))
        local waited = known and unwait(key, before)
        if known and op == 'W' then
          unclaim(key, nil, before, old_cost, now)
        elseif known and op == 'C' then
          unclaim(key, executor, before, old_cost, now)
        end
        -- The current holders are accounted with the old cost; correct them to the new cost.
        local held, pools = {}, {}
        if known then held, pools = holders(key) end
        if old_cost ~= ARGV[b + 6] then
          for _, holder in ipairs(held) do
            hold(pools[holder], group_of(key), tonumber(ARGV[b + 6]) - tonumber(old_cost), now)
          end
        end
        if op == 'H' then redis.call('ZREM', P .. 'hedges', key) end
        keep(score, ARGV[b + 6])
        -- A rebuilt index does not know the holders yet: one copy waits until their heartbeats arrive.
        if op == 'W' or op == 'H' or waited or #held == 0 then
          wait(key, score, ARGV[b + 5], required)
        end
      end
    end
  end
end
if token == '' then redis.call('HSET', KEYS[1], 'watermark', ARGV[2]) end
note_grants()
return {'applied', to, astray, from < wm and 1 or 2, granted, redis.call('EXISTS', P .. 'followed')}
