-- Removes a lost executor and returns its executions. Its claims stay until the events that follow are written.
--
-- ARGV[1]  executor
-- returns  {host or '', key, seq, record, ...}
-- cost     O(its claims)
assert(#KEYS == 1 and #ARGV == 1, 'action_lost: 1 key, 1 arg')
local executor = ARGV[1]
local found = {redis.call('HGET', P .. 'executor:' .. executor, 'host') or ''}
bury(executor)
redis.call('UNLINK', P .. 'executor:' .. executor)
heard(executor)
for _, key in ipairs(redis.call('SMEMBERS', P .. 'claims:' .. executor)) do
  local seq = entry(key)
  if seq then
    found[#found + 1] = key
    found[#found + 1] = seq
    found[#found + 1] = redis.call('HGET', P .. 'records', key)
  end
end
return found
