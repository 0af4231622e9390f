-- Takes an executor's heartbeat.
--
-- ARGV[1]  executor
-- ARGV[2]  now_ms
-- ARGV[3]  expires_ms  when it counts as gone without another one
-- ARGV[4]  status      ready, draining or gone
-- ARGV[5]  pool
-- ARGV[6]  host
-- ARGV[7]  slots
-- ARGV[8]  grace_ms    after which an execution that it should have and does not name waits again
-- ARGV[9]  heartbeat   as it was sent
-- ARGV[10...]  executions (group/id) that it has in hand
-- returns  {whether the index is ready, whether something can be offered that could not be before,
--           slots taken by what is not its claim, {those of them that do not live}}
-- cost     O((executions it has + its claims) * log(executions))
--
-- Naming one that waits (the index was rebuilt) claims it.
assert(#KEYS == 1 and #ARGV >= 9, 'action_announce: 1 key, 9 args and 1 an execution')
local executor, now, status, pool = ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[5]
local it, ready, dead, news = P .. 'executor:' .. executor, is_ready(), {}, 0
if status == 'gone' then
  for _, key in ipairs(redis.call('SMEMBERS', P .. 'claims:' .. executor)) do
    give_back(key)
    news = 1
  end
  bury(executor)
  redis.call('UNLINK', it, P .. 'ended:' .. executor)
  heard(executor)
  return {ready and 1 or 0, news, 0, dead}
end
redis.call('HSET', it, 'pool', pool, 'slots', ARGV[7], 'host', ARGV[6], 'extra', 0, 'open', 0, 'heartbeat', ARGV[9])
redis.call('ZADD', P .. 'executors', ARGV[3], executor)
redis.call('ZADD', P .. 'members:' .. pool, ARGV[3], executor)
local extra, named = 0, {}
for i = 10, #ARGV do
  local key = ARGV[i]
  named[key] = true
  local seq, _, _, of = entry(key)
  local owner = seq and redis.call('HGET', P .. 'claims', key)
  if owner == executor then
    redis.call('ZREM', P .. 'offered', key)
    redis.call('ZREM', P .. 'asked', key)
  elseif seq and not owner then
    unwait(key, of)
    claim(key, executor, of)
  elseif seq or not redis.call('ZSCORE', P .. 'ended:' .. executor, key) then
    extra = extra + 1
    if ready and not seq then dead[#dead + 1] = key end
  end
end
for _, key in ipairs(redis.call('SMEMBERS', P .. 'claims:' .. executor)) do
  if not named[key] then
    if redis.call('ZSCORE', P .. 'asked', key) then
      give_back(key)
      news = 1
    else
      -- It may be on its way there, or its end on its way here.
      redis.call('ZADD', P .. 'offered', 'NX', now + tonumber(ARGV[8]), key)
    end
  end
end
redis.call('HSET', it, 'extra', extra, 'open', status == 'ready' and 1 or 0)
if refresh(executor) > 0 then news = 1 end
if redis.call('HGET', KEYS[1], 'hold') then heard(executor) end
return {ready and 1 or 0, news, extra, dead}
