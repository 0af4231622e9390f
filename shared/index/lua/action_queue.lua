-- Explains why an execution waits.
--
-- ARGV[1]  now_ms
-- ARGV[2]  pool
-- ARGV[3]  execution (group/id), or ''
-- returns  {ready, live executors, waiting, claimed, place in its group's queue from 0 on or -1, its executor or ''}
-- cost     O(log(executions))
assert(#KEYS == 1 and #ARGV == 3, 'action_queue: 1 key, 3 args')
local pool, key = ARGV[2], ARGV[3]
local rank = key ~= '' and redis.call('ZRANK', queue_of(key, pool), key)
return {is_ready() and 1 or 0, redis.call('ZCOUNT', P .. 'members:' .. pool, '(' .. ARGV[1], '+inf'),
  tonumber(redis.call('HGET', P .. 'waiting', pool) or 0), tonumber(redis.call('HGET', P .. 'running', pool) or 0),
  rank or -1, key ~= '' and holders(key)[1] or ''}
