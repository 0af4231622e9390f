-- Counts the waiting builds of each priority, and finds the oldest ones.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  priorities  number of priorities
-- returns  {ready, running builds, {waiting builds, position of the oldest BUILD_ENQUEUED or 0, ...} by rank}
--          The oldest is that of the first builds of each queue: 64 with a few groups, one with thousands, which is the
--          oldest if the queues are in the order of arrival.
-- cost     O(priorities * groups * log(builds) + heads)
assert(#KEYS == 1 and #ARGV == 1, 'queue_depths: 1 key, 1 arg')
if redis.call('HGET', KEYS[1], 'ready') ~= '1' then return {0, 0, {}} end
local groups = redis.call('SMEMBERS', P .. 'groups')
local depth = math.max(1, math.min(64, math.floor(4096 / math.max(1, #groups))))
local depths = {}
for rank = 0, tonumber(ARGV[1]) - 1 do
  -- Lua would write a large number with an exponent, and lose digits.
  local from, to = string.format('%.0f', rank * RANKS), string.format('(%.0f', (rank + 1) * RANKS)
  local waiting, oldest = 0, 0
  for _, group in ipairs(groups) do
    local found = redis.call('ZCOUNT', P .. 'queue:' .. group, from, to)
    waiting = waiting + found
    if found > 0 then
      local ids = redis.call('ZRANGEBYSCORE', P .. 'queue:' .. group, from, to, 'LIMIT', 0, depth)
      for i, id in ipairs(ids) do ids[i] = group .. '/' .. id end
      for _, build in ipairs(redis.call('HMGET', P .. 'builds', unpack(ids))) do
        local position = build and tonumber(string.match(build, '^%d+'))
        if position and (oldest == 0 or position < oldest) then oldest = position end
      end
    end
  end
  depths[#depths + 1] = waiting
  depths[#depths + 1] = oldest
end
return {1, redis.call('ZCARD', P .. 'running'), depths}
