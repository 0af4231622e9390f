-- Prepended to every script of the action index. KEYS[1] is forebay:{actions}:2:meta; the prefix of every other key is
-- derived from it. The keys are listed in src/actions/script.rs.
local P = string.sub(KEYS[1], 1, -5)

-- The last three arguments of every script are numbers of policy::actions: HALF_LIFE and RETURNED_WAIT in milliseconds,
-- and LONG_AGO. They are removed here, so that each script counts its own arguments only.
local LONG_AGO = tonumber(table.remove(ARGV))
local RETURNED_WAIT = tonumber(table.remove(ARGV))
-- Seconds after which past use counts 1/e.
local LIFE = tonumber(table.remove(ARGV)) / 1000 / math.log(2)
-- Range of start tags below the rank in a score.
local TAGS = 2 ^ 38

local function is_ready() return redis.call('HGET', KEYS[1], 'ready') == '1' end

local function whole(number) return string.format('%.0f', number) end

-- Position, score, expiry time, thousandths of ESU of one copy, and id of the requirements of an unfinished execution.
local function entry(key)
  local text = redis.call('HGET', P .. 'live', key)
  if text then return string.match(text, '^(%d+) (%d+) (%d+) (%d+) (.+)$') end
end

-- Number of neighbouring positions that are counted together.
local RANGE = 1024

-- Moves an unfinished execution, whose last record was at position `from` (nil: it is new), to position `to` (nil: it ends).
local function move(from, to)
  local old, new = from and math.floor(from / RANGE), to and math.floor(to / RANGE)
  if old == new then return end
  if new then redis.call('HINCRBY', P .. 'ranges', whole(new), 1) end
  if old and redis.call('HINCRBY', P .. 'ranges', whole(old), -1) <= 0 then redis.call('HDEL', P .. 'ranges', whole(old)) end
end

local function group_of(key) return string.match(key, '^[^/]+') end

local function queue_of(key, required) return P .. 'waiting:' .. required .. ' ' .. group_of(key) end

local function tags_of(key) return P .. 'tags:' .. group_of(key) end

-- A group's use of a pool until now, in thousandths of ESU times seconds, and the resources that it holds. The same as
-- policy::actions::accrue, which tests compare.
local function standing(pool, group, now)
  local text = redis.call('HGET', P .. 'use:' .. pool, group)
  if not text then return 0, 0 end
  local used, held, at = string.match(text, '^(%S+) (%S+) (%S+)$')
  local left = math.exp(-math.max(0, now - at) / 1000 / LIFE)
  return used * left + held * LIFE * (1 - left), tonumber(held)
end

-- Adds `more` thousandths of ESU to the resources that the group holds.
local function hold(pool, group, more, now)
  local used, held = standing(pool, group, now)
  redis.call('HSET', P .. 'use:' .. pool, group, string.format('%.3f %.0f %.0f', used, math.max(0, held + more), now))
end

-- Whether the execution has already failed and only another running copy can change that: without one it is about to
-- be ended, and no executor starts it. See policy::actions::waits_until.
local function ends_alone(expires) return tonumber(expires) <= LONG_AGO end

-- The executors that hold a copy, and the pool of each.
local function holders(key)
  local found, pools = {}, {}
  for executor, pool in string.gmatch(redis.call('HGET', P .. 'claims', key) or '', '(%S+)@(%S+)') do
    found[#found + 1] = executor
    pools[executor] = pool
  end
  return found, pools
end

local function holds(key, executor)
  for _, holder in ipairs(holders(key)) do
    if holder == executor then return true end
  end
  return false
end

local function claim(key, executor, pool, cost, now)
  local others, it = redis.call('HGET', P .. 'claims', key), executor .. '@' .. pool
  redis.call('HSET', P .. 'claims', key, others and others .. ' ' .. it or it)
  redis.call('SADD', P .. 'claims:' .. executor, key)
  redis.call('HINCRBY', P .. 'running', pool, 1)
  hold(pool, group_of(key), tonumber(cost), now)
end

-- Number of the last grants to an executor whose notices are kept for schedulers that missed them.
local NOTICES = 16

-- Numbers of the last grants to the executors that this script gives executions to, those of them that the caller
-- does not know, and their kept notices, each `<number> <notice>`.
local last_grant, outdated, notices = {}, {}, {}

-- Whether the caller, which knows the grants to the executor up to number `after`, knows them all: only then it knows the
-- room. The number here is lower if the index was lost.
local function knows_room(executor, after)
  if not last_grant[executor] then
    local state = redis.call('HMGET', P .. 'executor:' .. executor, 'granted', 'notices')
    local stored, known = tonumber(state[1] or 0), tonumber(after)
    last_grant[executor] = math.max(stored, known)
    outdated[executor] = stored > known
    notices[executor] = state[2] or ''
  end
  return not outdated[executor]
end

-- The kept notices of grants to the executor after number `after`, in order; none if some of them are not kept.
local function missed(executor, after)
  local found, next = {}, tonumber(after) + 1
  for number, notice in string.gmatch(notices[executor], '(%d+) ([^\n]+)') do
    if tonumber(number) == next then
      found[#found + 1] = notice
      next = next + 1
    end
  end
  return next > last_grant[executor] and found or {}
end

-- Number of executions that each executor holds which this script gives some to.
local held_by = {}

-- Whether an executor holds at least `most` executions: it gets no more, whatever room it reports.
local function is_full(executor, most)
  held_by[executor] = held_by[executor] or redis.call('SCARD', P .. 'claims:' .. executor)
  return held_by[executor] >= tonumber(most)
end

-- Makes an execution a claim of the executor, which is in doubt from `doubt` on. Returns the number of the grant. `notice`
-- describes it for other schedulers; '' if there are none.
local function grant(key, executor, pool, cost, hedge_at, doubt, notice, now)
  claim(key, executor, pool, cost, now)
  redis.call('ZADD', P .. 'doubtful', doubt, executor .. ' ' .. key)
  if hedge_at ~= '0' then redis.call('ZADD', P .. 'hedges', hedge_at, key) end
  held_by[executor] = held_by[executor] + 1
  last_grant[executor] = last_grant[executor] + 1
  if notice ~= '' then notices[executor] = notices[executor] .. last_grant[executor] .. ' ' .. notice .. '\n' end
  return last_grant[executor]
end

-- Writes the numbers of the last grants, at the end of a script that grants.
local function note_grants()
  for executor, number in pairs(last_grant) do
    if not outdated[executor] then
      local kept = notices[executor]
      local first = string.match(kept, '^%d+')
      while first and tonumber(first) <= number - NOTICES do
        kept = string.sub(kept, string.find(kept, '\n', 1, true) + 1)
        first = string.match(kept, '^%d+')
      end
      redis.call('HSET', P .. 'executor:' .. executor, 'granted', number, 'notices', kept)
    end
  end
end

-- Removes the copy of one executor, or all copies if executor is nil. Returns the executors that held them.
local function unclaim(key, executor, required, cost, now)
  local gone, left, all, pools = {}, {}, holders(key)
  for _, holder in ipairs(all) do
    if executor and holder ~= executor then left[#left + 1] = holder .. '@' .. pools[holder] else gone[#gone + 1] = holder end
  end
  if #gone == 0 then return gone end
  for _, holder in ipairs(gone) do
    redis.call('SREM', P .. 'claims:' .. holder, key)
    redis.call('ZREM', P .. 'doubtful', holder .. ' ' .. key)
    redis.call('ZREM', P .. 'asked', holder .. ' ' .. key)
  end
  if #left == 0 then
    redis.call('HDEL', P .. 'claims', key)
    redis.call('ZREM', P .. 'hedges', key)
    -- Only a waiting copy is left.
    local _, _, expires = entry(key)
    if expires and redis.call('ZSCORE', queue_of(key, required), key) then
      redis.call('ZADD', P .. 'expires', expires, key)
    end
  else
    redis.call('HSET', P .. 'claims', key, table.concat(left, ' '))
  end
  for _, holder in ipairs(gone) do
    redis.call('HINCRBY', P .. 'running', pools[holder], -1)
    hold(pools[holder], group_of(key), -cost, now)
  end
  return gone
end

local function wait(key, score, expires, required)
  if redis.call('ZADD', queue_of(key, required), score, key) == 1 then
    redis.call('HINCRBY', P .. 'waiting', required, 1)
    redis.call('HINCRBY', P .. 'backlog', group_of(key), 1)
  end
  -- A further copy of a running execution may wait as long as the execution runs.
  if redis.call('HEXISTS', P .. 'claims', key) == 0 then redis.call('ZADD', P .. 'expires', expires, key) end
  redis.call('ZADD', P .. 'heads:' .. required, 'LT', score, group_of(key))
end

-- Removes an execution from its queue. Returns the score of the first that is left, '' if none is, or false if it did not wait.
local function unwait(key, required)
  local queue, group = queue_of(key, required), group_of(key)
  if redis.call('ZREM', queue, key) == 0 then return false end
  redis.call('ZREM', P .. 'expires', key)
  if redis.call('HINCRBY', P .. 'waiting', required, -1) <= 0 then redis.call('HDEL', P .. 'waiting', required) end
  local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if first[2] then
    redis.call('ZADD', P .. 'heads:' .. required, first[2], group)
  else
    redis.call('ZREM', P .. 'heads:' .. required, group)
  end
  if redis.call('HINCRBY', P .. 'backlog', group, -1) <= 0 then
    redis.call('HDEL', P .. 'backlog', group)
    redis.call('DEL', tags_of(key))
  end
  return first[2] or ''
end

-- The first executions of a group with these requirements, four fields each: key, score, demand, holders.
local function first_of(required, group, count)
  local scored = redis.call('ZRANGE', P .. 'waiting:' .. required .. ' ' .. group, 0, count - 1, 'WITHSCORES')
  local keys, flat = {}, {}
  for j = 1, #scored, 2 do keys[#keys + 1] = scored[j] end
  if #keys == 0 then return flat end
  local demands, claims = redis.call('HMGET', P .. 'demands', unpack(keys)), redis.call('HMGET', P .. 'claims', unpack(keys))
  for j, key in ipairs(keys) do
    local n = 4 * j
    flat[n - 3], flat[n - 2], flat[n - 1], flat[n] = key, scored[2 * j], demands[j] or '', claims[j] or ''
  end
  return flat
end

-- Requeues the copy of an executor that does not hold it; returns the id of its requirements if the execution waits
-- again.
local function give_back(key, executor, now)
  local seq, score, expires, cost, required = entry(key)
  if not seq then
    redis.call('SREM', P .. 'claims:' .. executor, key)
    redis.call('ZREM', P .. 'doubtful', executor .. ' ' .. key)
    redis.call('ZREM', P .. 'asked', executor .. ' ' .. key)
    return nil
  end
  if #unclaim(key, executor, required, cost, now) == 0 then return nil end
  -- A claim in time means that it did not wait too long: it gets the time to be claimed once more.
  wait(key, score, ends_alone(expires) and expires or math.max(tonumber(expires), now + RETURNED_WAIT), required)
  return required
end

-- Marks the claim as confirmed by its executor.
local function sure(key, executor)
  redis.call('ZREM', P .. 'doubtful', executor .. ' ' .. key)
  redis.call('ZREM', P .. 'asked', executor .. ' ' .. key)
end

-- Removes an executor from the live ones. Its claims stay.
local function bury(executor)
  local pool = redis.call('HGET', P .. 'executor:' .. executor, 'pool')
  redis.call('ZREM', P .. 'executors', executor)
  if pool then redis.call('ZREM', P .. 'members:' .. pool, executor) end
end

-- An executor that was awaited after a rebuild has sent a heartbeat, or will not send one.
local function heard(executor)
  if redis.call('SREM', P .. 'awaited', executor) == 1 and redis.call('EXISTS', P .. 'awaited') == 0 then
    redis.call('HSET', KEYS[1], 'hold', 0, 'guard', 0)
  end
end
