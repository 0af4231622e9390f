-- Reads the builds whose offers have expired.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  now_ms
-- ARGV[2]  most
-- returns  {key (group/id), entry, ...}
-- cost     O(log(builds) + most)
assert(#KEYS == 1 and #ARGV == 2, 'run_out: 1 key, 2 args')
local found = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', P .. 'offered', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])) do
  found[#found + 1] = key
  found[#found + 1] = redis.call('HGET', P .. 'builds', key) or ''
end
return found
