-- Position from which a rebuild may start to read: every unfinished execution has its last record after it.
--
-- returns  the position, or false when there is no index
-- cost     O(log(executions))
assert(#KEYS == 1 and #ARGV == 0, 'action_floor: 1 key, no args')
if not is_ready() then return false end
local first = redis.call('ZRANGE', P .. 'positions', 0, 0, 'WITHSCORES')[2]
return first and tonumber(first) - 1 or tonumber(redis.call('HGET', KEYS[1], 'watermark'))
