-- The queue of executions with the same requirements, and an execution's place in it.
--
-- ARGV[1]  now_ms
-- ARGV[2]  required   id of the requirements
-- ARGV[3]  execution  (group/id), or ''
-- ARGV[4...] pools whose executors meet them
-- returns  {ready, live executors of the pools, waiting, claimed in the pools, place in its group's queue from 0 on or
--           -1, its executor or '', executions of other groups that come before it if groups take turns, demands of
--           the first executions before it}
-- cost     O(pools + groups + log(executions))
local SAMPLE = 32
assert(#KEYS == 1 and #ARGV >= 3, 'action_queue: 1 key, 3 args and 1 a pool')
local required, key = ARGV[2], ARGV[3]
local rank = key ~= '' and redis.call('ZRANK', queue_of(key, required), key)
local live, running, others, sample = 0, 0, 0, {}
for i = 4, #ARGV do
  live = live + redis.call('ZCOUNT', P .. 'members:' .. ARGV[i], '(' .. ARGV[1], '+inf')
  running = running + tonumber(redis.call('HGET', P .. 'running', ARGV[i]) or 0)
end
if rank then
  for _, group in ipairs(redis.call('ZRANGE', P .. 'heads:' .. required, 0, -1)) do
    if group ~= group_of(key) then
      others = others + math.min(redis.call('ZCARD', P .. 'waiting:' .. required .. ' ' .. group), rank + 1)
    end
  end
  local keys = redis.call('ZRANGE', queue_of(key, required), 0, math.min(rank, SAMPLE - 1))
  sample = redis.call('HMGET', P .. 'demands', unpack(keys))
  for i = 1, #keys do sample[i] = sample[i] or '' end
end
return {is_ready() and 1 or 0, live, tonumber(redis.call('HGET', P .. 'waiting', required) or 0), running, rank or -1,
  key ~= '' and holders(key)[1] or '', others, sample}
