-- Reads part of a group's queue.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  group
-- ARGV[2]  offset  number of builds to skip
-- ARGV[3]  count   maximum number of builds
-- returns  {id, entry, ...}
-- cost     O(log(queue) + count)
assert(#KEYS == 1 and #ARGV == 3, 'read_page: 1 key, 3 args')
local ids = redis.call('ZRANGE', P .. 'queue:' .. ARGV[1], ARGV[2], ARGV[2] + ARGV[3] - 1)
local list = {}
for _, id in ipairs(ids) do
  local entry = redis.call('HGET', P .. 'builds', ARGV[1] .. '/' .. id)
  if entry then
    list[#list + 1] = id
    list[#list + 1] = entry
  end
end
return list
