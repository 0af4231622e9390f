-- Counts the waiting builds of some groups by priority, with the first of each.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  priorities  number of priorities
-- ARGV[2…] groups
-- returns  {waiting builds, id of the first or '', ...} by rank, of one group after the other
-- cost     O(priorities * groups * log(builds))
assert(#KEYS == 1 and #ARGV >= 1, 'waiting_counts: 1 key, at least 1 arg')
local counts = {}
for at = 2, #ARGV do
  local queue = P .. 'queue:' .. ARGV[at]
  for rank = 0, tonumber(ARGV[1]) - 1 do
    -- Lua would write a large number with an exponent, and lose digits.
    local from, to = string.format('%.0f', rank * RANKS), string.format('(%.0f', (rank + 1) * RANKS)
    counts[#counts + 1] = tostring(redis.call('ZCOUNT', queue, from, to))
    counts[#counts + 1] = redis.call('ZRANGEBYSCORE', queue, from, to, 'LIMIT', 0, 1)[1] or ''
  end
end
return counts
