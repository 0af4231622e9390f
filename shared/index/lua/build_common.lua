-- Prepended to every script of the build index; defines P and the functions below.
local P = string.sub(KEYS[1], 1, -5)

-- A build's entry is 'position score time', followed by ' use occupancy' unless the build has the default traits: use
-- is 'w' if it requests a warm workspace, 'a' if it runs actions on executors, 'b' for both, else '-'; occupancy is
-- 'type:micro-ESU,...'. The default occupancy is 1 ESU of x86. ' ~ms' after it is the expected run time, if known, and each
-- ' @name=value' after that a property that its worker must offer.
local function entry_of(build)
  local seq, score, time, use, occupancy = string.match(build, '^(%S+) (%S+) (%S+) ?([abw-]?) ?([^%s~@]*)')
  return seq, score, time, use == 'a' or use == 'b', use == '' and 'x86:1000000' or occupancy
end

-- Adds a build's occupancy to a sum, such as its group's total in progress (sign ''), or subtracts it (sign '-'). The
-- digits stay text: Lua would write a large number with an exponent.
local function add_up(key, build, sign)
  local _, _, _, _, occupancy = entry_of(build)
  for kind, micros in string.gmatch(occupancy, '([^:,]+):(%d+)') do
    -- Redis does not accept '-0' as a number.
    if tonumber(micros) > 0 and redis.call('HINCRBY', key, kind, sign .. micros) == 0 then
      redis.call('HDEL', key, kind)
    end
  end
end

-- Range of ranks within a priority in a score, as in src/event.rs: below it are emergencies.
local RANKS = 2 ^ 48

-- Whether the build runs actions on executors.
local function sends_actions(build)
  local _, _, _, sends = entry_of(build)
  return sends
end

local function count(group, build, sign)
  add_up(P .. 'inprogress:' .. group, build, sign)
  if sends_actions(build) then add_up(P .. 'onexecutors', build, sign) end
end

-- Counts a run that ended.
local function count_ended(group, build)
  add_up(P .. 'ended:' .. group, build, '')
  if sends_actions(build) then add_up(P .. 'endedonexecutors', build, '') end
end

local function queue_in(group, id, score)
  redis.call('ZADD', P .. 'queue:' .. group, score, id)
  if redis.call('SADD', P .. 'groups', group) == 1 then redis.call('HINCRBY', KEYS[1], 'groups_version', 1) end
  if tonumber(score) < RANKS then redis.call('SADD', P .. 'emergencies', group) end
end

-- Removes the build from its queue; returns whether it was there.
local function queue_out(group, id)
  if redis.call('ZREM', P .. 'queue:' .. group, id) == 0 then return false end
  local first = redis.call('ZRANGE', P .. 'queue:' .. group, 0, 0, 'WITHSCORES')[2]
  if not first or tonumber(first) >= RANKS then redis.call('SREM', P .. 'emergencies', group) end
  if not first and redis.call('SREM', P .. 'groups', group) == 1 then
    redis.call('HINCRBY', KEYS[1], 'groups_version', 1)
  end
  return true
end

-- Marks the workspace as idle, if its worker is live and accepts builds, and no other build has it.
local function release(ws)
  local worker = string.match(ws, '^(.*)/')
  if redis.call('ZSCORE', P .. 'workers', worker) and redis.call('SISMEMBER', P .. 'draining', worker) == 0
     and redis.call('HEXISTS', P .. 'taken', ws) == 0 then
    redis.call('SADD', P .. 'idle', ws)
  end
end

-- Has a build occupy a workspace, from its offer to its end: until then no heartbeat, which may be older, makes the
-- workspace idle.
local function occupy(key, ws)
  redis.call('HSET', P .. 'offers', key, ws)
  redis.call('HSET', P .. 'taken', ws, key)
end

-- Ends that; returns the workspace.
local function vacate(key)
  local ws = redis.call('HGET', P .. 'offers', key)
  redis.call('HDEL', P .. 'offers', key)
  if ws and redis.call('HGET', P .. 'taken', ws) == key then redis.call('HDEL', P .. 'taken', ws) end
  return ws
end

-- Removes a build from the offered ones; returns the workspace that it was offered to.
local function take_out(key)
  local ws = vacate(key)
  local build = redis.call('HGET', P .. 'builds', key)
  if redis.call('ZREM', P .. 'offered', key) == 1 and build then count(string.match(key, '^(.*)/'), build, '-') end
  return ws
end

-- Returns a build to its place in its queue; returns whether it is there. A head that was read without it is out of date:
-- its picks could be later builds.
local function requeue(key)
  local build = redis.call('HGET', P .. 'builds', key)
  if not build then return false end
  local group, id = string.match(key, '^(.*)/(.*)$')
  local _, score = entry_of(build)
  queue_in(group, id, score)
  redis.call('HINCRBY', P .. 'versions', group, 1)
  return true
end

