-- Settles answered and overdue offers, then reads what a decision needs: free executors and the first of each queue.
--
-- ARGV[1]  now_ms
-- ARGV[2]  max       executions of a pool at most
-- ARGV[3]  grace_ms  how long an executor that let an offer run out may take to say whether it has it
-- ARGV[4]  count     of answers; then four fields each: key, seq, executor, verdict
--          taken: it has it · busy: back to the queue, nothing more for this executor until it is heard of
--          gone: back to the queue, the executor is not there
-- returns  {ready, watermark, waiting, offered, claimed, next offer's deadline, next time an execution is overdue,
--           until when nothing is offered (each 0 for none), executors that let offers run out,
--           {pool, {executor, free slots, ...}, {key, ...}, ...}}
-- cost     O(count * log(executions) + pools * max)
assert(#KEYS == 1 and #ARGV == 4 + 4 * tonumber(ARGV[4]), 'action_heads: 1 key, 4 args and 4 an answer')
local now, max = tonumber(ARGV[1]), tonumber(ARGV[2])
local state = redis.call('HMGET', KEYS[1], 'ready', 'watermark', 'hold', 'guard')
if state[1] ~= '1' then return {0, 0, 0, 0, 0, '0', '0', '0', 0, {}} end
for i = 0, tonumber(ARGV[4]) - 1 do
  local b = 5 + i * 4
  local key, executor, verdict = ARGV[b], ARGV[b + 2], ARGV[b + 3]
  local owner = redis.call('HGET', P .. 'claims', key)
  if verdict == 'taken' then
    if owner == executor then
      redis.call('ZREM', P .. 'offered', key)
      redis.call('ZREM', P .. 'asked', key)
    elseif not owner and redis.call('EXISTS', P .. 'executor:' .. executor) == 1 then
      -- The index was rebuilt meanwhile, unless the execution has moved on.
      local seq, _, _, pool = entry(key)
      if seq == ARGV[b + 1] and unwait(key, pool) then
        claim(key, executor, pool)
        refresh(executor)
      end
    end
  else
    if owner == executor then give_back(key) end
    rest(executor)
    if verdict == 'gone' then bury(executor) end
  end
end
local silent, quiet = 0, {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', P .. 'asked', '-inf', now, 'LIMIT', 0, 1000)) do
  local executor = give_back(key)
  if executor then refresh(executor) end
end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', P .. 'offered', '-inf', now, 'LIMIT', 0, 1000)) do
  redis.call('ZREM', P .. 'offered', key)
  local executor = redis.call('HGET', P .. 'claims', key)
  if executor then
    redis.call('ZADD', P .. 'asked', now + tonumber(ARGV[3]), key)
    if not quiet[executor] then
      quiet[executor] = true
      silent = silent + 1
      rest(executor)
    end
  end
end
for _, executor in ipairs(redis.call('ZRANGEBYSCORE', P .. 'executors', '-inf', now, 'LIMIT', 0, 16)) do
  rest(executor)
  bury(executor)
  if redis.call('EXISTS', P .. 'claims:' .. executor) == 0 then
    redis.call('UNLINK', P .. 'executor:' .. executor, P .. 'ended:' .. executor)
  end
end
local heads, hold = {}, state[3] or '0'
if tonumber(hold) <= now then
  hold = '0'
  for _, pool in ipairs(redis.call('SMEMBERS', P .. 'pools')) do
    local free = redis.call('ZREVRANGE', P .. 'free:' .. pool, 0, 63, 'WITHSCORES')
    local room = 0
    for i = 2, #free, 2 do room = room + tonumber(free[i]) end
    if room > 0 and max > 0 then
      local keys = redis.call('ZRANGE', P .. 'waiting:' .. pool, 0, math.min(room, max) - 1)
      if #keys == 0 then
        redis.call('SREM', P .. 'pools', pool)
      else
        heads[#heads + 1] = pool
        heads[#heads + 1] = free
        heads[#heads + 1] = keys
      end
    end
  end
end
local function first(name) return tonumber(redis.call('ZRANGE', P .. name, 0, 0, 'WITHSCORES')[2] or 0) end
local offer, asked, overdue = first('offered'), first('asked'), first('expires')
if offer == 0 or (asked > 0 and asked < offer) then offer = asked end
if overdue > 0 then overdue = math.max(overdue, tonumber(state[4] or 0)) end
local function text(at) return string.format('%.0f', at) end
return {1, state[2], redis.call('ZCARD', P .. 'expires'), redis.call('ZCARD', P .. 'offered') + redis.call('ZCARD', P .. 'asked'),
  redis.call('HLEN', P .. 'claims'), text(offer), text(overdue), hold, silent, heads}
