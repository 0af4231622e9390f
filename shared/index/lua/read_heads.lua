-- Reads what a dispatch decision needs: idle workspaces and the heads of the groups whose turn it is.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  now_ms
-- ARGV[2]  idle_max   workspaces at most; as many groups, and as many builds of each
-- returns  {ready, watermark, waiting groups, offered, running, next offer's deadline or 0, {workspace...},
--           {group, {id, seq, ...}, ...}}
-- cost     O(idle_max^2) at most
assert(#KEYS == 1 and #ARGV == 2, 'read_heads: 1 key, 2 args')
local P = string.sub(KEYS[1], 1, -5)
local state = redis.call('HMGET', KEYS[1], 'ready', 'watermark')
if state[1] ~= '1' then return {0, 0, 0, 0, 0, '0', {}, {}} end
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers', '-inf', ARGV[1], 'LIMIT', 0, 16)) do
  redis.call('ZREM', P .. 'workers', worker)
  redis.call('SREM', P .. 'draining', worker)
  for slot = 0, tonumber(redis.call('HGET', P .. 'slots', worker) or 0) - 1 do
    redis.call('SREM', P .. 'idle', worker .. '/' .. slot)
  end
  redis.call('HDEL', P .. 'slots', worker)
  redis.call('HDEL', P .. 'workerinfo', worker)
end
local waiting = redis.call('ZCARD', P .. 'groups')
local counts = {redis.call('ZCARD', P .. 'offered'), redis.call('ZCARD', P .. 'running')}
local idle, heads = {}, {}
if waiting > 0 then idle = redis.call('SRANDMEMBER', P .. 'idle', ARGV[2]) end
if #idle > 0 then
  for _, group in ipairs(redis.call('ZRANGE', P .. 'groups', 0, #idle - 1)) do
    local ids = redis.call('ZRANGE', P .. 'queue:' .. group, 0, #idle - 1)
    if #ids == 0 then
      redis.call('ZREM', P .. 'groups', group)
    else
      local list = {}
      for _, id in ipairs(ids) do
        local build = redis.call('HGET', P .. 'builds', group .. '/' .. id)
        if build then
          list[#list + 1] = id
          list[#list + 1] = string.match(build, '^%d+')
        end
      end
      heads[#heads + 1] = group
      heads[#heads + 1] = list
    end
  end
end
local offer = redis.call('ZRANGE', P .. 'offered', 0, 0, 'WITHSCORES')
return {1, state[2], waiting, counts[1], counts[2], offer[2] or '0', idle, heads}
