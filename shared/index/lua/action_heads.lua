-- Handles unconfirmed claims, then reads the state for a decision: the heads of the groups' queues and the groups' use.
--
-- ARGV[1]  now_ms
-- ARGV[2]  max       maximum number of executions of a pool; 0: only their number is read
-- ARGV[3]  grace_ms  time limit for an executor to confirm its unconfirmed executions
-- ARGV[4...] pools
-- returns  {ready, waiting, unconfirmed, claimed, next check of unconfirmed, next time an execution is overdue,
--           next time a copy is due, until when nothing is granted (each '0' for none), executors to ask,
--           {pool, executions that wait there, {group, used, held, {key, demand, holders, ...}, ...}, ...}}
-- cost     O(pools * (groups + max))
assert(#KEYS == 1 and #ARGV >= 3, 'action_heads: 1 key, 3 args and 1 a pool')
local now, max = tonumber(ARGV[1]), tonumber(ARGV[2])
local state = redis.call('HMGET', KEYS[1], 'ready', 'hold', 'guard')
if state[1] ~= '1' then return {0, 0, 0, 0, '0', '0', '0', '0', 0, {}} end
local function split(member) return string.match(member, '^(%S+) (.+)$') end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'asked', '-inf', now, 'LIMIT', 0, 1000)) do
  local executor, key = split(member)
  give_back(key, executor, now)
end
local silent, quiet = 0, {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'doubtful', '-inf', now, 'LIMIT', 0, 1000)) do
  local executor = split(member)
  redis.call('ZREM', P .. 'doubtful', member)
  redis.call('ZADD', P .. 'asked', now + tonumber(ARGV[3]), member)
  if not quiet[executor] then
    quiet[executor] = true
    silent = silent + 1
  end
end
for _, executor in ipairs(redis.call('ZRANGEBYSCORE', P .. 'executors', '-inf', now, 'LIMIT', 0, 16)) do
  bury(executor)
  if redis.call('EXISTS', P .. 'claims:' .. executor) == 0 then redis.call('UNLINK', P .. 'executor:' .. executor) end
end
local heads, until_ms = {}, state[2] or '0'
if tonumber(until_ms) <= now then
  until_ms = '0'
  for i = 4, #ARGV do
    local pool, queues = ARGV[i], {}
    local groups = redis.call('SMEMBERS', P .. 'groups:' .. pool)
    -- A heavy user that this limit cuts off is no worse off: the other groups come first in any case.
    local each = #groups > 0 and math.max(8, math.ceil(max / #groups)) or max
    for _, group in ipairs(groups) do
      local keys = max > 0 and redis.call('ZRANGE', P .. 'waiting:' .. pool .. ' ' .. group, 0, math.min(each, max) - 1) or {}
      if #keys > 0 then
        local demands, claims = redis.call('HMGET', P .. 'demands', unpack(keys)), redis.call('HMGET', P .. 'claims', unpack(keys))
        local flat = {}
        for j, key in ipairs(keys) do
          flat[3 * j - 2], flat[3 * j - 1], flat[3 * j] = key, demands[j] or '', claims[j] or ''
        end
        local used, held = standing(pool, group, now)
        local n = #queues
        queues[n + 1], queues[n + 2], queues[n + 3], queues[n + 4] = group, whole(used), whole(held), flat
      end
    end
    local n = #heads
    heads[n + 1], heads[n + 2], heads[n + 3] = pool, tonumber(redis.call('HGET', P .. 'waiting', pool) or 0), queues
  end
end
local function first(name) return tonumber(redis.call('ZRANGE', P .. name, 0, 0, 'WITHSCORES')[2] or 0) end
local doubt, asked, overdue = first('doubtful'), first('asked'), first('expires')
if doubt == 0 or (asked > 0 and asked < doubt) then doubt = asked end
if overdue > 0 then overdue = math.max(overdue, tonumber(state[3] or 0)) end
local waiting = 0
for _, count in ipairs(redis.call('HVALS', P .. 'waiting')) do waiting = waiting + tonumber(count) end
return {1, waiting, redis.call('ZCARD', P .. 'doubtful') + redis.call('ZCARD', P .. 'asked'),
  redis.call('HLEN', P .. 'claims'), whole(doubt), whole(overdue), whole(first('hedges')), until_ms, silent, heads}
