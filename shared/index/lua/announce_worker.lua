-- Applies a worker's heartbeat.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  worker
-- ARGV[2]  expires_ms  when it counts as gone
-- ARGV[3]  status      ready, draining, full or gone
-- ARGV[4]  heartbeat   as it was sent
-- ARGV[5...] one for each workspace: 'idle', 'closed', 'broken', or the build (group/id) that it runs
-- returns  {whether the index is ready, workspaces that became idle}
-- cost     O(slots)
assert(#KEYS == 1 and #ARGV >= 4, 'announce_worker: 1 key, 4 args and 1 a workspace')
local worker, status, slots = ARGV[1], ARGV[3], #ARGV - 4
local fresh = 0
if status == 'gone' then
  redis.call('ZREM', P .. 'workers', worker)
  redis.call('HDEL', P .. 'workerinfo', worker)
  redis.call('HDEL', P .. 'slots', worker)
else
  redis.call('ZADD', P .. 'workers', ARGV[2], worker)
  redis.call('HSET', P .. 'workerinfo', worker, ARGV[4])
  redis.call('HSET', P .. 'slots', worker, slots)
end
local takes_none = status == 'draining' or status == 'full'
redis.call(takes_none and 'SADD' or 'SREM', P .. 'draining', worker)
redis.call(status == 'full' and 'SADD' or 'SREM', P .. 'full', worker)
for slot = 0, slots - 1 do
  local ws, does = worker .. '/' .. slot, ARGV[5 + slot]
  local free = status == 'ready' and does == 'idle'
  if free and redis.call('HEXISTS', P .. 'taken', ws) == 0 then
    fresh = fresh + redis.call('SADD', P .. 'idle', ws)
  elseif not free and (status ~= 'ready' or does == 'broken' or does == 'closed' or redis.call('HEXISTS', P .. 'builds', does) == 1) then
    -- A heartbeat may be older than the end of the build that it names: then the workspace is free.
    redis.call('SREM', P .. 'idle', ws)
  end
end
return {redis.call('HGET', KEYS[1], 'ready') == '1' and 1 or 0, fresh}
