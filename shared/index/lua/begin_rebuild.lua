-- Takes the right to rebuild the index and empties it.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  token   of this rebuild
-- ARGV[2]  ttl_ms  how long the right lasts without progress
-- returns  1 taken, 0 someone else rebuilds
-- cost     O(groups), the keys themselves are freed in the background
assert(#KEYS == 1 and #ARGV == 2, 'begin_rebuild: 1 key, 2 args')
local P = string.sub(KEYS[1], 1, -5)
if not redis.call('SET', P .. 'rebuild', ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
for _, group in ipairs(redis.call('ZRANGE', P .. 'groups', 0, -1)) do
  redis.call('UNLINK', P .. 'queue:' .. group)
end
for _, group in ipairs(redis.call('SMEMBERS', P .. 'seen')) do
  redis.call('UNLINK', P .. 'recent:' .. group, P .. 'queue:' .. group)
end
for _, name in ipairs({'groups', 'seen', 'builds', 'expires', 'running', 'deadlines', 'offered', 'offers', 'taken', 'idle'}) do
  redis.call('UNLINK', P .. name)
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'ready', 0)
return 1
