-- Moves granted executions from their queue to their executor, if they still wait.
--
-- ARGV[1]  now_ms
-- ARGV[2]  doubt_ms  when a grant that its executor has not confirmed is in doubt
-- ARGV[3]  count  of grants; then eight fields each: key, executor, when another copy is due (0: never), milli-ESU that
--          it holds there, number of the last grant to the executor that the caller knows of, pool of the executor, notice of the
--          grant or '', maximum number of executions that the executor holds
-- returns  {{seq, number, record, {}}, ...}, one for each grant: its number; {0, 0, '', {}} if the execution does not
--          wait; {0, number, '', notices} if that is the number of the last grant to the executor, unknown to the
--          caller: with the notices of all grants that the caller missed, as far as they are kept; {0, -1, '', {}} if
--          the executor is full
-- cost     O(count * log(executions))
assert(#KEYS == 1 and #ARGV == 3 + 8 * tonumber(ARGV[3]), 'action_commit: 1 key, 3 args and 8 a grant')
local now = tonumber(ARGV[1])
local state = redis.call('HMGET', KEYS[1], 'ready', 'hold')
local open = state[1] == '1' and tonumber(state[2] or 0) <= now
local done = {}
for i = 0, tonumber(ARGV[3]) - 1 do
  local b = 4 + i * 8
  local key, executor = ARGV[b], ARGV[b + 1]
  local current = knows_room(executor, ARGV[b + 4])
  local seq, score, expires, cost, required = entry(key)
  done[i + 1] = {0, current and 0 or last_grant[executor], '', current and {} or missed(executor, ARGV[b + 4])}
  local first = false
  local may = open and seq and current and not (ends_alone(expires) and #holders(key) == 0)
  if may and is_full(executor, ARGV[b + 7]) then
    done[i + 1] = {0, -1, '', {}}
  elseif may and not holds(key, executor) then
    first = unwait(key, required)
  end
  if first then
    if cost ~= ARGV[b + 3] and #holders(key) == 0 then
      cost = ARGV[b + 3]
      redis.call('HSET', P .. 'live', key, table.concat({seq, score, expires, cost, required}, ' '))
    end
    local number = grant(key, executor, ARGV[b + 5], cost, ARGV[b + 2], ARGV[2], ARGV[b + 6], now)
    -- Advance the group's virtual time, unless its last execution has just left: to the first that waits, if it was overtaken.
    local tags = tags_of(key)
    if redis.call('EXISTS', tags) == 1 then
      local start = score % TAGS
      local is_same_rank = first ~= '' and math.floor(first / TAGS) == math.floor(score / TAGS)
      if is_same_rank then start = math.min(start, first % TAGS) end
      if start > tonumber(redis.call('HGET', tags, '') or 0) then redis.call('HSET', tags, '', whole(start)) end
    end
    done[i + 1] = {tonumber(seq), number, redis.call('HGET', P .. 'records', key), {}}
  end
end
note_grants()
return done
