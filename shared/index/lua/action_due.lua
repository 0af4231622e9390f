-- Executions with an action due, each returned to one caller: those that have waited too long, or that are to get
-- another copy.
--
-- ARGV[1]  what      expires or hedges
-- ARGV[2]  now_ms
-- ARGV[3]  again_ms  when they are returned again if the action is still due
-- ARGV[4]  max
-- returns  {key, seq, record, ...}
-- cost     O(max * log(executions))
assert(#KEYS == 1 and #ARGV == 4, 'action_due: 1 key, 4 args')
local all, now = P .. ARGV[1], tonumber(ARGV[2])
local state = redis.call('HMGET', KEYS[1], 'ready', 'guard')
if state[1] ~= '1' or tonumber(state[2] or 0) > now then return {} end
local found = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', all, '-inf', now, 'LIMIT', 0, ARGV[4])) do
  local seq = entry(key)
  if seq then
    redis.call('ZADD', all, ARGV[3], key)
    found[#found + 1] = key
    found[#found + 1] = seq
    found[#found + 1] = redis.call('HGET', P .. 'records', key)
  else
    redis.call('ZREM', all, key)
  end
end
return found
