-- Acquires the right to rebuild the index and empties it.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  token   of this rebuild
-- ARGV[2]  ttl_ms  time to live of the right without progress
-- returns  1 acquired, 0 another process rebuilds
-- cost     O(groups), the keys themselves are freed in the background
assert(#KEYS == 1 and #ARGV == 2, 'begin_rebuild: 1 key, 2 args')
if not redis.call('SET', P .. 'rebuild', ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
for _, name in ipairs({'groups', 'seen'}) do
  for _, group in ipairs(redis.call('SMEMBERS', P .. name)) do
    for _, part in ipairs({'recent:', 'queue:', 'inprogress:', 'ended:', 'ends:'}) do
      redis.call('UNLINK', P .. part .. group)
    end
  end
end
local all = {'groups', 'emergencies', 'seen', 'builds', 'expires', 'running', 'deadlines', 'offered', 'offers', 'taken', 'idle',
             'onexecutors', 'endedonexecutors'}
for _, name in ipairs(all) do
  redis.call('UNLINK', P .. name)
end
-- Group names that a dispatcher remembers are outdated: change their version.
local groups_version = (tonumber(redis.call('HGET', KEYS[1], 'groups_version')) or 0) + 1
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'ready', 0, 'groups_version', groups_version)
return 1
