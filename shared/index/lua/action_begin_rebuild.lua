-- Takes the right to rebuild the action index and empties it.
--
-- ARGV[1]  token   of this rebuild
-- ARGV[2]  ttl_ms  how long the right lasts without progress
-- returns  1 taken, 0 someone else rebuilds
-- cost     O(claims + executors), the rest is freed in the background
--
-- Executors stay known, but nothing is offered to one before it has said again what it runs.
assert(#KEYS == 1 and #ARGV == 2, 'action_begin_rebuild: 1 key, 2 args')
if not redis.call('SET', P .. 'rebuild', ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
for _, executor in ipairs(redis.call('HVALS', P .. 'claims')) do redis.call('UNLINK', P .. 'claims:' .. executor) end
for _, executor in ipairs(redis.call('ZRANGE', P .. 'executors', 0, -1)) do rest(executor) end
for _, pool in ipairs(redis.call('SMEMBERS', P .. 'pools')) do redis.call('UNLINK', P .. 'waiting:' .. pool) end
local all = {'live', 'records', 'positions', 'claims', 'offered', 'asked', 'expires', 'running', 'pools', 'awaited'}
for _, name in ipairs(all) do
  redis.call('UNLINK', P .. name)
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'ready', 0)
return 1
