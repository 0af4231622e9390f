-- Handles unconfirmed claims, then reads the state for a decision: the heads of the groups' queues and the groups' use.
--
-- ARGV[1]  now_ms
-- ARGV[2]  max       maximum number of executions with the same requirements; 0: only their number is read. If more of several
--          groups wait, no execution is read, but the first score of each group
-- ARGV[3]  grace_ms  time limit for an executor to confirm its unconfirmed executions
-- ARGV[4]  count     of pools, which follow; then ids of requirements
-- returns  {ready, waiting, claimed, next check of unconfirmed claims, next time an execution is overdue,
--           next time a copy is due, until when nothing is granted (each '0' for none), {executor to ask, ...},
--           {id, executions that wait with these requirements, {group, first score, {key, score, demand, holders, ...}, ...}, ...},
--           {pool, {group, use, ...}, ...} of the groups with executions among these,
--           {ids of the requirements of executions that this call requeued}}
-- cost     O(requirements * (groups + max) + pools * groups)
assert(#KEYS == 1 and #ARGV >= 4, 'action_heads: 1 key, 4 args, 1 a pool and 1 for each id')
local now, max = tonumber(ARGV[1]), tonumber(ARGV[2])
local state = redis.call('HMGET', KEYS[1], 'ready', 'hold', 'guard')
if state[1] ~= '1' then return {0, 0, 0, '0', '0', '0', '0', {}, {}, {}, {}} end
local function split(member) return string.match(member, '^(%S+) (.+)$') end
local again = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'asked', '-inf', now, 'LIMIT', 0, 1000)) do
  local executor, key = split(member)
  again[#again + 1] = give_back(key, executor, now)
end
local silent, quiet = {}, {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'doubtful', '-inf', now, 'LIMIT', 0, 1000)) do
  local executor = split(member)
  redis.call('ZREM', P .. 'doubtful', member)
  redis.call('ZADD', P .. 'asked', now + tonumber(ARGV[3]), member)
  if not quiet[executor] then
    quiet[executor] = true
    silent[#silent + 1] = executor
  end
end
for _, executor in ipairs(redis.call('ZRANGEBYSCORE', P .. 'executors', '-inf', now, 'LIMIT', 0, 16)) do
  bury(executor)
  if redis.call('EXISTS', P .. 'claims:' .. executor) == 0 then redis.call('UNLINK', P .. 'executor:' .. executor) end
end
local heads, uses, until_ms = {}, {}, state[2] or '0'
if tonumber(until_ms) <= now then
  until_ms = '0'
  local found, names, first_id = {}, {}, 5 + tonumber(ARGV[4])
  for i = first_id, #ARGV do
    local required, queues = ARGV[i], {}
    local count = tonumber(redis.call('HGET', P .. 'waiting', required) or 0)
    local groups = max > 0 and redis.call('ZRANGE', P .. 'heads:' .. required, 0, -1, 'WITHSCORES') or {}
    -- Of many groups, the caller chooses those whose executions it reads.
    local at_once = count <= max or #groups == 2
    for j = 1, #groups, 2 do
      local group, n = groups[j], #queues
      queues[n + 1], queues[n + 2], queues[n + 3] = group, groups[j + 1], at_once and first_of(required, group, max) or {}
      if not found[group] then
        found[group] = true
        names[#names + 1] = group
      end
    end
    local n = #heads
    heads[n + 1], heads[n + 2], heads[n + 3] = required, count, queues
  end
  for i = 5, first_id - 1 do
    local of_pool = {}
    for j = 1, #names, 1000 do
      local last = math.min(j + 999, #names)
      for k, text in ipairs(redis.call('HMGET', P .. 'use:' .. ARGV[i], unpack(names, j, last))) do
        if text then
          of_pool[#of_pool + 1] = names[j + k - 1]
          of_pool[#of_pool + 1] = text
        end
      end
    end
    uses[#uses + 1] = ARGV[i]
    uses[#uses + 1] = of_pool
  end
end
local function first(name) return tonumber(redis.call('ZRANGE', P .. name, 0, 0, 'WITHSCORES')[2] or 0) end
local doubt, asked, overdue = first('doubtful'), first('asked'), first('expires')
if doubt == 0 or (asked > 0 and asked < doubt) then doubt = asked end
if overdue > 0 then overdue = math.max(overdue, tonumber(state[3] or 0)) end
local waiting = 0
for _, count in ipairs(redis.call('HVALS', P .. 'waiting')) do waiting = waiting + tonumber(count) end
return {1, waiting, redis.call('HLEN', P .. 'claims'), whole(doubt), whole(overdue), whole(first('hedges')), until_ms, silent,
  heads, uses, again}
