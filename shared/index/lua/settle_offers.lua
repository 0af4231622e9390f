-- Settles offers that were not accepted.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  count  of offers; then five fields each: key (group/id), seq, workspace, verdict, retry_ms
--          verdict busy: requeue the build, the workspace is not free
--                  gone: requeue the build, the worker is gone
--                  failed: requeue the build at retry_ms, the workspace is free
--                  stale: remove the build from the index, the workspace is free
-- returns  number of requeued builds
-- cost     O(count * log(builds))
assert(#KEYS == 1 and #ARGV == 1 + 5 * tonumber(ARGV[1]), 'settle_offers: 1 key, 1 arg and 5 an offer')
local back = 0

for i = 0, tonumber(ARGV[1]) - 1 do
  local b = 2 + i * 5
  local key, seq, verdict = ARGV[b], ARGV[b + 1], ARGV[b + 3]
  local build = redis.call('HGET', P .. 'builds', key)
  local same = build and string.match(build, '^%d+') == seq
  -- The same build may have been offered to another workspace since: settle only this offer.
  if same and redis.call('HGET', P .. 'offers', key) == ARGV[b + 2] then
    if verdict == 'failed' then
      -- Keep the offer without a workspace; it expires soon.
      local ws = vacate(key)
      if ws then release(ws) end
      redis.call('ZADD', P .. 'offered', ARGV[b + 4], key)
    else
      local ws = take_out(key)
      if verdict == 'stale' then
        if ws then release(ws) end
        redis.call('ZREM', P .. 'expires', key)
        redis.call('HDEL', P .. 'builds', key)
      else
        if requeue(key) then back = back + 1 end
      end
      if verdict == 'gone' and ws then
        local worker = string.match(ws, '^(.*)/')
        redis.call('ZADD', P .. 'workers', 'XX', 0, worker)
      end
    end
  end
end
return back
