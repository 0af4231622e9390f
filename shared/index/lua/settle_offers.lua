-- Settles offers that were not taken, or that ran out.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  now_ms
-- ARGV[2]  count  of offers; then five fields each: key (group/id), seq, workspace, verdict, retry_ms
--          verdict busy: back to the queue, the workspace is not free
--                  gone: back to the queue, the worker is not there
--                  failed: back to the queue at retry_ms, the workspace is free
--                  stale: out of the index, the workspace is free
-- returns  {builds back in their queue, workers that let a deadline pass}
-- cost     O(count * log(builds))
--
-- With count 0 it only returns the offers whose deadline has passed to their queues. A worker that let one pass
-- hangs, or was never asked: its workspaces are offered nothing until it is heard of again.
assert(#KEYS == 1 and #ARGV == 2 + 5 * tonumber(ARGV[2]), 'settle_offers: 1 key, 2 args and 5 an offer')
local P = string.sub(KEYS[1], 1, -5)
local back, silent, quiet = 0, 0, {}

local function take_out(key)
  local ws = redis.call('HGET', P .. 'offers', key)
  redis.call('ZREM', P .. 'offered', key)
  redis.call('HDEL', P .. 'offers', key)
  if ws then redis.call('HDEL', P .. 'taken', ws) end
  return ws
end

local function requeue(key)
  local build = redis.call('HGET', P .. 'builds', key)
  local group, id = string.match(key, '^(.*)/(.*)$')
  if not build then return end
  redis.call('ZADD', P .. 'queue:' .. group, string.match(build, '^%d+ (%S+)'), id)
  redis.call('ZADD', P .. 'groups', 'NX', redis.call('HGET', KEYS[1], 'turn') or 0, group)
  back = back + 1
end

local function release(ws)
  local worker = string.match(ws, '^(.*)/')
  if redis.call('ZSCORE', P .. 'workers', worker) and redis.call('SISMEMBER', P .. 'draining', worker) == 0 then
    redis.call('SADD', P .. 'idle', ws)
  end
end

for i = 0, tonumber(ARGV[2]) - 1 do
  local b = 3 + i * 5
  local key, seq, verdict = ARGV[b], ARGV[b + 1], ARGV[b + 3]
  local build = redis.call('HGET', P .. 'builds', key)
  local same = build and string.match(build, '^%d+') == seq
  -- The same build may have been offered to another workspace since: that offer is not this one.
  if same and redis.call('HGET', P .. 'offers', key) == ARGV[b + 2] then
    if verdict == 'failed' then
      -- The offer stays as one without a workspace, which runs out soon.
      local ws = redis.call('HGET', P .. 'offers', key)
      redis.call('HDEL', P .. 'offers', key)
      if ws then redis.call('HDEL', P .. 'taken', ws) release(ws) end
      redis.call('ZADD', P .. 'offered', ARGV[b + 4], key)
    else
      local ws = take_out(key)
      if verdict == 'stale' then
        if ws then release(ws) end
        redis.call('ZREM', P .. 'expires', key)
        redis.call('HDEL', P .. 'builds', key)
      else
        requeue(key)
      end
      if verdict == 'gone' and ws then
        local worker = string.match(ws, '^(.*)/')
        redis.call('ZADD', P .. 'workers', 'XX', 0, worker)
      end
    end
  end
end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', P .. 'offered', '-inf', ARGV[1], 'LIMIT', 0, 1000)) do
  local ws = take_out(key)
  local worker = ws and string.match(ws, '^(.*)/')
  if worker and not quiet[worker] then
    quiet[worker] = true
    silent = silent + 1
    for slot = 0, tonumber(redis.call('HGET', P .. 'slots', worker) or 0) - 1 do
      redis.call('SREM', P .. 'idle', worker .. '/' .. slot)
    end
  end
  requeue(key)
end
return {back, silent}
