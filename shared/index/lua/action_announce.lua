-- Applies an executor's heartbeat.
--
-- ARGV[1]  executor
-- ARGV[2]  now_ms
-- ARGV[3]  expires_ms  when it counts as gone without another heartbeat
-- ARGV[4]  gone        1: it shuts down now
-- ARGV[5]  pool
-- ARGV[6]  host
-- ARGV[7]  grace_ms    time after which an execution that it should hold and does not name is unconfirmed
-- ARGV[8]  heartbeat   as it was sent
-- ARGV[9...]  executions (group/id) that it holds
-- returns  {whether the index is ready, {ids of the requirements of requeued executions}, {executions that it holds and that have ended},
--           {execution, demand, ... of those that it holds, that were not known, and that have no copy due}}
-- cost     O((executions it holds + its claims) * log(executions))
--
-- Naming an execution makes it this executor's claim, even if others hold it: it runs there.
assert(#KEYS == 1 and #ARGV >= 8, 'action_announce: 1 key, 8 args and 1 an execution')
local executor, now, pool = ARGV[1], tonumber(ARGV[2]), ARGV[5]
local it, ready, again, dead, found = P .. 'executor:' .. executor, is_ready(), {}, {}, {}
if ARGV[4] == '1' then
  for _, key in ipairs(redis.call('SMEMBERS', P .. 'claims:' .. executor)) do
    again[#again + 1] = give_back(key, executor, now)
  end
  bury(executor)
  redis.call('UNLINK', it)
  heard(executor)
  return {ready and 1 or 0, again, dead, found}
end
redis.call('HSET', it, 'pool', pool, 'host', ARGV[6], 'heartbeat', ARGV[8])
redis.call('ZADD', P .. 'executors', ARGV[3], executor)
redis.call('ZADD', P .. 'members:' .. pool, ARGV[3], executor)
local named = {}
for i = 9, #ARGV do
  local key = ARGV[i]
  named[key] = true
  local seq, _, _, cost, required = entry(key)
  if not seq then
    if ready then dead[#dead + 1] = key end
  elseif holds(key, executor) then
    sure(key, executor)
  else
    claim(key, executor, pool, cost, now)
    local text = redis.call('HGET', P .. 'demands', key)
    local wanted = 1 + (text and cjson.decode(text).more or 0)
    if #holders(key) >= wanted then
      unwait(key, required)
    else
      -- Another copy was due before the index was rebuilt.
      redis.call('ZREM', P .. 'expires', key)
    end
    if text and not redis.call('ZSCORE', P .. 'hedges', key) then
      found[#found + 1] = key
      found[#found + 1] = text
    end
  end
end
for _, key in ipairs(redis.call('SMEMBERS', P .. 'claims:' .. executor)) do
  if not named[key] then
    if redis.call('ZSCORE', P .. 'asked', executor .. ' ' .. key) then
      again[#again + 1] = give_back(key, executor, now)
    else
      -- The claim may be on its way there, or its end on its way here.
      redis.call('ZADD', P .. 'doubtful', 'LT', now + tonumber(ARGV[7]), executor .. ' ' .. key)
    end
  end
end
if redis.call('HGET', KEYS[1], 'hold') then heard(executor) end
return {ready and 1 or 0, again, dead, found}
