-- Requeues builds whose offers expired, once it is known that they were not started.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  now_ms
-- ARGV[2]  later_ms  when the started ones are checked again: their start event is on its way
-- ARGV[3]  count     number of builds (group/id) that were started; these follow, then those that were not started
-- returns  {number of requeued builds, number of workers that let a deadline pass}
-- cost     O(builds * log(builds))
--
-- A worker that let a deadline pass hangs, or was never asked: its workspaces are offered nothing
-- until its next heartbeat.
assert(#KEYS == 1 and #ARGV >= 3 + tonumber(ARGV[3]), 'take_back: 1 key, 3 args and the builds')
local back, silent, quiet = 0, 0, {}
local started = tonumber(ARGV[3])
for i = 4, #ARGV do
  local key = ARGV[i]
  local due = redis.call('ZSCORE', P .. 'offered', key)
  if due and tonumber(due) <= tonumber(ARGV[1]) then
    if i < 4 + started then
      redis.call('ZADD', P .. 'offered', ARGV[2], key)
    else
      local ws = take_out(key)
      local worker = ws and string.match(ws, '^(.*)/')
      if worker and not quiet[worker] then
        quiet[worker] = true
        silent = silent + 1
        for slot = 0, tonumber(redis.call('HGET', P .. 'slots', worker) or 0) - 1 do
          redis.call('SREM', P .. 'idle', worker .. '/' .. slot)
        end
      end
      if requeue(key) then back = back + 1 end
    end
  end
end
return {back, silent}
