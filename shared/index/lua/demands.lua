-- Reads the groups' demands for the governor.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  depth  maximum number of builds of each queue
-- ARGV[2...]  groups
-- returns  {{type, micro-ESU in progress, ...}, builds in the queue, {id, entry, ...},
--           {type, micro-ESU of builds that ended since the index was built, ...}, ... for each group}
-- cost     O(groups * depth)
assert(#KEYS == 1 and #ARGV >= 1, 'demands: 1 key, 1 arg and the groups')
local found = {}
for i = 2, #ARGV do
  local group, list = ARGV[i], {}
  if tonumber(ARGV[1]) > 0 then
    for _, id in ipairs(redis.call('ZRANGE', P .. 'queue:' .. group, 0, ARGV[1] - 1)) do
      local entry = redis.call('HGET', P .. 'builds', group .. '/' .. id)
      if entry then
        list[#list + 1] = id
        list[#list + 1] = entry
      end
    end
  end
  found[#found + 1] = redis.call('HGETALL', P .. 'inprogress:' .. group)
  found[#found + 1] = redis.call('ZCARD', P .. 'queue:' .. group)
  found[#found + 1] = list
  found[#found + 1] = redis.call('HGETALL', P .. 'ended:' .. group)
end
return found
