-- Position from which a rebuild may start to read: every unfinished execution has its last record after it.
--
-- returns  the position, or false when there is no index
-- cost     O(ranges of positions with unfinished executions)
assert(#KEYS == 1 and #ARGV == 0, 'action_floor: 1 key, no args')
if not is_ready() then return false end
local first
for _, range in ipairs(redis.call('HKEYS', P .. 'ranges')) do first = math.min(first or math.huge, tonumber(range)) end
return first and math.max(0, first * RANGE - 1) or tonumber(redis.call('HGET', KEYS[1], 'watermark'))
