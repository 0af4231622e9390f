-- Moves picked builds from their queue to the offered ones, if nothing changed since they were read.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  deadline_ms  when the offers expire
-- ARGV[2]  executors    version of the sum of builds that run actions when it was read, if executors limit builds;
--                       else ''. A commit since by another dispatcher invalidates the picks that run actions, except
--                       emergencies.
-- ARGV[3]  kept         idle workspaces that are left for emergencies
-- ARGV[4]  count        of picks, those of a group in queue order; then six fields each: group, version,
--          id, seq, workspace, extra ('' or 'use occupancy': the traits it counts with, if they differ from its entry)
--          version: that of the group's budget when its head was read. Another dispatcher's commit since spent from
--          the same budget and invalidates the group's picks.
-- returns  {time of the commit in us of Redis' clock, which orders the picks of all dispatchers,
--           for each pick: 1 offered, 0 not (build or budget used by another, or all idle workspaces are kept),
--           2 not (workspace not idle)}
-- cost     O(count * log(builds))
--
-- If a build's workspace is no longer idle, the later picks of its group wait too: they would overtake it.
assert(#KEYS == 1 and #ARGV == 4 + 6 * tonumber(ARGV[4]), 'commit_picks: 1 key, 4 args and 6 a pick')
local time = redis.call('TIME')
local done, held_up, stands, spent = {time[1] * 1000000 + time[2]}, {}, {}, {}
if redis.call('HGET', KEYS[1], 'ready') ~= '1' then
  for i = 1, tonumber(ARGV[4]) do done[i + 1] = 0 end
  return done
end
local room = ARGV[2] == '' or (redis.call('HGET', P .. 'versions', '') or '0') == ARGV[2]
local kept = tonumber(ARGV[3])
for i = 0, tonumber(ARGV[4]) - 1 do
  local b = 5 + i * 6
  local group, version, id, seq, ws, extra = ARGV[b], ARGV[b + 1], ARGV[b + 2], ARGV[b + 3], ARGV[b + 4], ARGV[b + 5]
  local key = group .. '/' .. id
  if stands[group] == nil then
    stands[group] = (redis.call('HGET', P .. 'versions', group) or '0') == version
  end
  local build = redis.call('HGET', P .. 'builds', key)
  local same = build and string.match(build, '^%d+') == seq
  done[i + 2] = 0
  local waits = same and stands[group] and not held_up[group] and redis.call('ZSCORE', P .. 'queue:' .. group, id)
  local is_emergency = waits and tonumber(waits) < RANKS
  -- Checked here, where the picks of all dispatchers meet.
  local no_workspace = not is_emergency and kept > 0 and redis.call('SCARD', P .. 'idle') <= kept
  local no_executor = not is_emergency and not room and sends_actions(build)
  if waits and (no_workspace or no_executor) then
    held_up[group] = true
  elseif waits and redis.call('SREM', P .. 'idle', ws) == 0 then
    held_up[group] = true
    done[i + 2] = 2
  elseif waits then
    queue_out(group, id)
    redis.call('ZADD', P .. 'offered', ARGV[1], key)
    occupy(key, ws)
    if extra ~= '' then
      build = string.match(build, '^%S+ %S+ %S+') .. ' ' .. extra
      redis.call('HSET', P .. 'builds', key, build)
    end
    count(group, build, '')
    spent[group] = true
    -- No group has the empty name: it is that of the sum.
    if sends_actions(build) then spent[''] = true end
    done[i + 2] = 1
  end
end
for group in pairs(spent) do redis.call('HINCRBY', P .. 'versions', group, 1) end
return done
