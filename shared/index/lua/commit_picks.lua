-- Moves picked builds from their queue to the offered, if nothing changed since they were read.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  deadline_ms  when an offer is void
-- ARGV[2]  count        of picks, those of a group in its order; then four fields each: group, id, seq, workspace
-- returns  {when, in us of Redis' clock: all dispatchers' picks are in its order, one 0 or 1 a pick...}
-- cost     O(count * log(builds))
--
-- Where a build's workspace is gone meanwhile, the later ones of its group wait too: they would overtake it.
assert(#KEYS == 1 and #ARGV == 2 + 4 * tonumber(ARGV[2]), 'commit_picks: 1 key, 2 args and 4 a pick')
local P = string.sub(KEYS[1], 1, -5)
local time = redis.call('TIME')
local done, held_up = {time[1] * 1000000 + time[2]}, {}
if redis.call('HGET', KEYS[1], 'ready') ~= '1' then
  for i = 1, tonumber(ARGV[2]) do done[i + 1] = 0 end
  return done
end
for i = 0, tonumber(ARGV[2]) - 1 do
  local b = 3 + i * 4
  local group, id, seq, ws = ARGV[b], ARGV[b + 1], ARGV[b + 2], ARGV[b + 3]
  local key = group .. '/' .. id
  local build = redis.call('HGET', P .. 'builds', key)
  local same = build and string.match(build, '^%d+') == seq
  done[i + 2] = 0
  local waits = same and not held_up[group] and redis.call('ZSCORE', P .. 'queue:' .. group, id)
  if waits and redis.call('SREM', P .. 'idle', ws) == 0 then
    held_up[group] = true
  elseif waits then
    redis.call('ZREM', P .. 'queue:' .. group, id)
    redis.call('ZADD', P .. 'offered', ARGV[1], key)
    redis.call('HSET', P .. 'offers', key, ws)
    redis.call('HSET', P .. 'taken', ws, key)
    local turn = redis.call('HINCRBY', KEYS[1], 'turn', 1)
    if redis.call('EXISTS', P .. 'queue:' .. group) == 1 then
      redis.call('ZADD', P .. 'groups', 'XX', turn, group)
    else
      redis.call('ZREM', P .. 'groups', group)
    end
    done[i + 2] = 1
  end
end
return done
