-- Moves picked executions from their queue to their executor, if nothing changed since they were read.
--
-- ARGV[1]  now_ms
-- ARGV[2]  deadline_ms  when an offer is void
-- ARGV[3]  count        of picks, those of a pool in its order; then two fields each: key, executor
-- returns  {seq, record, ...}, two a pick: 0 and '' where it does not hold any more
-- cost     O(count * log(executions))
--
-- Where a pick's executor has no free slot any more, the later ones of its pool wait too: they would overtake it.
assert(#KEYS == 1 and #ARGV == 3 + 2 * tonumber(ARGV[3]), 'action_commit: 1 key, 3 args and 2 a pick')
local state = redis.call('HMGET', KEYS[1], 'ready', 'hold')
local open = state[1] == '1' and tonumber(state[2] or 0) <= tonumber(ARGV[1])
local done, free, held_up = {}, {}, {}
for i = 0, tonumber(ARGV[3]) - 1 do
  local key, executor = ARGV[4 + i * 2], ARGV[5 + i * 2]
  local seq, _, _, pool = entry(key)
  done[2 * i + 1], done[2 * i + 2] = 0, ''
  if open and seq and not held_up[pool] then
    free[executor] = free[executor] or tonumber(redis.call('ZSCORE', P .. 'free:' .. pool, executor) or 0)
    if free[executor] < 1 then
      held_up[pool] = true
    elseif unwait(key, pool) then
      free[executor] = free[executor] - 1
      claim(key, executor, pool)
      redis.call('ZADD', P .. 'offered', ARGV[2], key)
      done[2 * i + 1], done[2 * i + 2] = seq, redis.call('HGET', P .. 'records', key)
    end
  end
end
for executor in pairs(free) do refresh(executor) end
return done
