-- The requirements of all waiting executions, and how many wait of each group.
--
-- returns  {{demand of one of them, {group, count, ...}}, ...}
-- cost     O(requirements * groups)
assert(#KEYS == 1 and #ARGV == 0, 'action_backlog: 1 key, no args')
local found = {}
for _, required in ipairs(redis.call('HKEYS', P .. 'waiting')) do
  local counts, demand = {}, nil
  for _, group in ipairs(redis.call('ZRANGE', P .. 'heads:' .. required, 0, -1)) do
    local queue = P .. 'waiting:' .. required .. ' ' .. group
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if first then
      demand = demand or redis.call('HGET', P .. 'demands', first)
      counts[#counts + 1] = group
      counts[#counts + 1] = whole(redis.call('ZCARD', queue))
    end
  end
  if demand then found[#found + 1] = {demand, counts} end
end
return found
