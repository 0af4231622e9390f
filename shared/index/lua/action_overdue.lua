-- Executions that have waited too long, for one caller to end.
--
-- ARGV[1]  now_ms
-- ARGV[2]  again_ms  when they are handed out again, if they still wait
-- ARGV[3]  max
-- returns  {key, seq, record, ...}
-- cost     O(max * log(executions))
assert(#KEYS == 1 and #ARGV == 3, 'action_overdue: 1 key, 3 args')
local state = redis.call('HMGET', KEYS[1], 'ready', 'guard')
if state[1] ~= '1' or tonumber(state[2] or 0) > tonumber(ARGV[1]) then return {} end
local found = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', P .. 'expires', '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])) do
  local seq = entry(key)
  if seq then
    redis.call('ZADD', P .. 'expires', ARGV[2], key)
    found[#found + 1] = key
    found[#found + 1] = seq
    found[#found + 1] = redis.call('HGET', P .. 'records', key)
  else
    redis.call('ZREM', P .. 'expires', key)
  end
end
return found
