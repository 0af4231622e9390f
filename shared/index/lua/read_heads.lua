-- Reads the state for a dispatch decision: idle workspaces and the heads of waiting groups.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  now_ms
-- ARGV[2]  idle_max        maximum number of workspaces
-- ARGV[3]  depth_min       minimum number of builds of each head; with more idle workspaces, their number
-- ARGV[4]  groups_max      number of waiting groups up to which all are read; beyond it, the named ones, and at most as
--          many with an emergency
-- ARGV[5]  groups_version  version of the names that the caller knows
-- ARGV[6...]  groups chosen by the caller
-- returns  {ready, watermark, waiting groups, offered, running, next offer's deadline or 0, {workspace...},
--           idle workspaces of the farm (0 if nothing waits),
--           groups_version or 0, {name of every waiting group...; none if all are read, or already known},
--           {group, version of its budget, {type, micro-ESU in progress, ...}, {id, entry, ...}, ...},
--           {type, micro-ESU in progress of builds that run actions, ...}, version of that sum}
-- cost     O(groups + heads * depth)
assert(#KEYS == 1 and #ARGV >= 5, 'read_heads: 1 key, 5 args and the groups')
local state = redis.call('HMGET', KEYS[1], 'ready', 'watermark', 'groups_version')
if state[1] ~= '1' then return {0, 0, 0, 0, 0, '0', {}, 0, 0, {}, {}, {}, 0} end
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers', '-inf', ARGV[1], 'LIMIT', 0, 16)) do
  redis.call('ZREM', P .. 'workers', worker)
  redis.call('SREM', P .. 'draining', worker)
  redis.call('SREM', P .. 'full', worker)
  for slot = 0, tonumber(redis.call('HGET', P .. 'slots', worker) or 0) - 1 do
    redis.call('SREM', P .. 'idle', worker .. '/' .. slot)
  end
  redis.call('HDEL', P .. 'slots', worker)
  redis.call('HDEL', P .. 'workerinfo', worker)
end
local waiting = redis.call('SCARD', P .. 'groups')
local counts = {redis.call('ZCARD', P .. 'offered'), redis.call('ZCARD', P .. 'running')}
-- Version of the names that the caller receives or already knows; 0 if none are needed.
local current, version = tonumber(state[3]) or 0, 0
local idle, names, heads, wanted = {}, {}, {}, {}
local all_idle = 0
if waiting > 0 then
  idle, all_idle = redis.call('SRANDMEMBER', P .. 'idle', ARGV[2]), redis.call('SCARD', P .. 'idle')
end
if #idle > 0 then
  if waiting <= tonumber(ARGV[4]) then
    wanted = redis.call('SMEMBERS', P .. 'groups')
  else
    version = current
    if version ~= tonumber(ARGV[5]) then names = redis.call('SMEMBERS', P .. 'groups') end
    local named = {}
    for i = 6, #ARGV do
      wanted[#wanted + 1] = ARGV[i]
      named[ARGV[i]] = true
    end
    for _, group in ipairs(redis.call('SRANDMEMBER', P .. 'emergencies', ARGV[4])) do
      if not named[group] then wanted[#wanted + 1] = group end
    end
  end
end
local depth = math.max(#idle, tonumber(ARGV[3]))
for _, group in ipairs(wanted) do
  local ids = redis.call('ZRANGE', P .. 'queue:' .. group, 0, depth - 1)
  if #ids > 0 then
    local keys, list = {}, {}
    for i, id in ipairs(ids) do keys[i] = group .. '/' .. id end
    local entries = redis.call('HMGET', P .. 'builds', unpack(keys))
    for i, id in ipairs(ids) do
      if entries[i] then
        list[#list + 1] = id
        list[#list + 1] = entries[i]
      end
    end
    heads[#heads + 1] = group
    heads[#heads + 1] = tonumber(redis.call('HGET', P .. 'versions', group) or 0)
    heads[#heads + 1] = redis.call('HGETALL', P .. 'inprogress:' .. group)
    heads[#heads + 1] = list
  end
end
local offer = redis.call('ZRANGE', P .. 'offered', 0, 0, 'WITHSCORES')
return {1, state[2], waiting, counts[1], counts[2], offer[2] or '0', idle, all_idle, version, names, heads,
        redis.call('HGETALL', P .. 'onexecutors'), tonumber(redis.call('HGET', P .. 'versions', '') or 0)}
