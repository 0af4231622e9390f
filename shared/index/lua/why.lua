-- Reads the state that explains why a build waits.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  group
-- ARGV[2]  id
-- ARGV[3]  ahead_max    maximum number of builds before it
-- ARGV[4]  running_max  maximum number of builds in progress
-- ARGV[5]  busy_max     maximum number of builds in progress of all groups
-- ARGV[6]  groups_max   maximum number of names of waiting groups
-- returns  {ready, place in its group's queue from 0 or -1, builds in that queue, {id, entry, ... of those before
--           it and of itself, from the head}, {type, micro-ESU in progress, ...}, {id, entry, ... in progress},
--           idle workspaces, {when its group's last runs ended, in ms, newest first}, busy workspaces,
--           {1 if of this group else 0, entry, ... that run}, {same for offers}, waiting groups, {some of them}}
-- cost     O(log(queue) + ahead_max + builds in progress)
assert(#KEYS == 1 and #ARGV == 6, 'why: 1 key, 6 args')
local group, id = ARGV[1], ARGV[2]
local queue = P .. 'queue:' .. group
if redis.call('HGET', KEYS[1], 'ready') ~= '1' then return {0, -1, 0, {}, {}, {}, 0, {}, 0, {}, {}, 0, {}} end

local function put(list, name)
  local entry = redis.call('HGET', P .. 'builds', group .. '/' .. name)
  if entry then
    list[#list + 1] = name
    list[#list + 1] = entry
  end
end

local place = redis.call('ZRANK', queue, id)
local ahead, running = {}, {}
if place then
  for _, name in ipairs(redis.call('ZRANGE', queue, 0, math.min(place, ARGV[3] - 1))) do put(ahead, name) end
  if place >= tonumber(ARGV[3]) then put(ahead, id) end
end
local busy, most = {running = {}, offered = {}}, 2 * tonumber(ARGV[5])
for _, set in ipairs({'running', 'offered'}) do
  for _, key in ipairs(redis.call('ZRANGE', P .. set, 0, -1)) do
    local counts = #busy.running + #busy.offered < most
    if not counts and #running >= 2 * tonumber(ARGV[4]) then break end
    local of, name = string.match(key, '^(.*)/(.*)$')
    if of == group and #running < 2 * tonumber(ARGV[4]) then put(running, name) end
    local entry = counts and redis.call('HGET', P .. 'builds', key)
    if entry then
      table.insert(busy[set], of == group and '1' or '0')
      table.insert(busy[set], entry)
    end
  end
end
local in_progress = redis.call('ZCARD', P .. 'running') + redis.call('ZCARD', P .. 'offered')
return {1, place or -1, redis.call('ZCARD', queue), ahead, redis.call('HGETALL', P .. 'inprogress:' .. group), running,
        redis.call('SCARD', P .. 'idle'), redis.call('LRANGE', P .. 'ends:' .. group, 0, -1), in_progress,
        busy.running, busy.offered, redis.call('SCARD', P .. 'groups'), redis.call('SRANDMEMBER', P .. 'groups', ARGV[6])}
