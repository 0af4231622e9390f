-- Moves granted executions from their queue to their executor, if they still wait.
--
-- ARGV[1]  now_ms
-- ARGV[2]  count  of grants; then four fields each: key, executor, when another copy is due (0: never), milli-ESU that
--          it holds there
-- returns  {seq, record, ...}, two for each grant: 0 and '' if it is no longer valid
-- cost     O(count * log(executions))
assert(#KEYS == 1 and #ARGV == 2 + 4 * tonumber(ARGV[2]), 'action_commit: 1 key, 2 args and 4 a grant')
local now = tonumber(ARGV[1])
local state = redis.call('HMGET', KEYS[1], 'ready', 'hold')
local open = state[1] == '1' and tonumber(state[2] or 0) <= now
local done = {}
for i = 0, tonumber(ARGV[2]) - 1 do
  local b = 3 + i * 4
  local key, executor = ARGV[b], ARGV[b + 1]
  local seq, score, expires, cost, pool = entry(key)
  done[2 * i + 1], done[2 * i + 2] = 0, ''
  local may = open and seq and not (ends_alone(expires) and #holders(key) == 0)
  if may and not holds(key, executor) and unwait(key, pool) then
    if cost ~= ARGV[b + 3] and #holders(key) == 0 then
      cost = ARGV[b + 3]
      redis.call('HSET', P .. 'live', key, table.concat({seq, score, expires, cost, pool}, ' '))
    end
    claim(key, executor, pool, cost, now)
    if ARGV[b + 2] ~= '0' then redis.call('ZADD', P .. 'hedges', ARGV[b + 2], key) end
    -- Advance the group's virtual time, unless its last execution has just left.
    local tags = P .. 'tags:' .. pool .. ' ' .. group_of(key)
    if redis.call('EXISTS', tags) == 1 then
      local start = score % TAGS
      if start > tonumber(redis.call('HGET', tags, '') or 0) then redis.call('HSET', tags, '', whole(start)) end
    end
    done[2 * i + 1], done[2 * i + 2] = seq, redis.call('HGET', P .. 'records', key)
  end
end
return done
