-- Applies events of executions to the index, in order, each once.
--
-- ARGV[1]  from      position up to which the caller had read before these events
-- ARGV[2]  to        position up to which it has read with them
-- ARGV[3]  token     '' while following; the rebuild's token while rebuilding
-- ARGV[4]  ttl_ms    how long the rebuild's token lives on
-- ARGV[5]  count     of events; then eight fields each:
--          op, seq, key, pool, score, expires_ms, executor, record
--          op W: waits, for the first time or again; F: finished, by executor or ''
-- returns  {status, watermark, {key, executor, ...}}: 'applied', 'gap' (from is ahead of the watermark), 'empty' (no
--          index), 'rebuilding' (someone else does), 'lost' (the token is another's); executions that ended without the
--          executor that has them
-- cost     O(count * log(executions))
assert(#KEYS == 1 and #ARGV == 5 + 8 * tonumber(ARGV[5]), 'action_apply: 1 key, 5 args and 8 an event')
local from, to, token = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local wm = 0
if token == '' then
  local state = redis.call('HMGET', KEYS[1], 'ready', 'watermark')
  if not state[1] then return {'empty', 0, {}} end
  if state[1] ~= '1' then
    return {redis.call('EXISTS', P .. 'rebuild') == 1 and 'rebuilding' or 'empty', 0, {}}
  end
  wm = tonumber(state[2])
  if from > wm then return {'gap', wm, {}} end
  if to <= wm then return {'applied', wm, {}} end
else
  if redis.call('GET', P .. 'rebuild') ~= token then return {'lost', 0, {}} end
  redis.call('PEXPIRE', P .. 'rebuild', ARGV[4])
end
local touched, astray = {}, {}
for i = 0, tonumber(ARGV[5]) - 1 do
  local b = 6 + i * 8
  local op, seq, key = ARGV[b], ARGV[b + 1], ARGV[b + 2]
  if tonumber(seq) > wm then
    local known, _, _, pool = entry(key)
    if known then
      local executor = unclaim(key, pool)
      if executor then
        touched[executor] = true
        if op == 'F' and executor == ARGV[b + 6] then
          ended(key, executor, seq)
        elseif op == 'F' then
          astray[#astray + 1] = key
          astray[#astray + 1] = executor
        end
      else
        unwait(key, pool)
      end
    end
    if op == 'W' then
      pool = ARGV[b + 3]
      redis.call('HSET', P .. 'live', key, seq .. ' ' .. ARGV[b + 4] .. ' ' .. ARGV[b + 5] .. ' ' .. pool)
      redis.call('HSET', P .. 'records', key, ARGV[b + 7])
      redis.call('ZADD', P .. 'positions', seq, key)
      wait(key, ARGV[b + 4], ARGV[b + 5], pool)
    elseif known then
      redis.call('HDEL', P .. 'live', key)
      redis.call('HDEL', P .. 'records', key)
      redis.call('ZREM', P .. 'positions', key)
    end
  end
end
for executor in pairs(touched) do refresh(executor) end
if token == '' then redis.call('HSET', KEYS[1], 'watermark', ARGV[2]) end
return {'applied', to, astray}
