-- Declares the rebuilt action index ready.
--
-- ARGV[1]  token      of this rebuild
-- ARGV[2]  watermark  position up to which the index holds everything
-- ARGV[3]  hold_ms    until then nothing is granted, unless all of the executors below send a heartbeat before
-- ARGV[4]  guard_ms   until then nothing counts as overdue, since it may run; the same exception applies
-- ARGV[5...]  live executors that may be running executions
-- returns  1 ready, 0 the right was lost
-- cost     O(executors)
assert(#KEYS == 1 and #ARGV >= 4, 'action_finish_rebuild: 1 key, 4 args and 1 an executor')
if redis.call('GET', P .. 'rebuild') ~= ARGV[1] then return 0 end
local await = #ARGV > 4
redis.call('HSET', KEYS[1], 'ready', 1, 'watermark', ARGV[2], 'epoch', ARGV[1],
  'hold', await and ARGV[3] or 0, 'guard', await and ARGV[4] or 0)
for i = 5, #ARGV do redis.call('SADD', P .. 'awaited', ARGV[i]) end
redis.call('DEL', P .. 'rebuild')
return 1
