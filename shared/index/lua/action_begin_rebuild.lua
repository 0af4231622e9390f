-- Acquires the right to rebuild the action index and empties it.
--
-- ARGV[1]  token   of this rebuild
-- ARGV[2]  ttl_ms  time to live of the right without progress
-- returns  1 acquired, 0 another process rebuilds
-- cost     O(claims + requirements * groups), the rest is freed in the background
--
-- Executors stay known; their heartbeats name their executions again.
assert(#KEYS == 1 and #ARGV == 2, 'action_begin_rebuild: 1 key, 2 args')
if not redis.call('SET', P .. 'rebuild', ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
for _, all in ipairs(redis.call('HVALS', P .. 'claims')) do
  for executor in string.gmatch(all, '(%S+)@%S+') do redis.call('UNLINK', P .. 'claims:' .. executor) end
end
for _, required in ipairs(redis.call('HKEYS', P .. 'waiting')) do
  for _, group in ipairs(redis.call('ZRANGE', P .. 'heads:' .. required, 0, -1)) do
    redis.call('UNLINK', P .. 'waiting:' .. required .. ' ' .. group)
  end
  redis.call('UNLINK', P .. 'heads:' .. required)
end
for _, group in ipairs(redis.call('HKEYS', P .. 'backlog')) do redis.call('UNLINK', P .. 'tags:' .. group) end
-- The current use of groups is counted from zero; their past use is lost with it.
for _, pool in ipairs(redis.call('HKEYS', P .. 'running')) do redis.call('UNLINK', P .. 'use:' .. pool) end
local all = {'live', 'records', 'demands', 'ranges', 'claims', 'doubtful', 'asked', 'expires', 'hedges', 'merge', 'waiting',
  'backlog', 'running', 'awaited'}
for _, name in ipairs(all) do
  redis.call('UNLINK', P .. name)
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'ready', 0)
return 1
