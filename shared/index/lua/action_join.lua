-- Joins the waiting or running execution of an action, or registers the caller's own execution as the one to join.
--
-- ARGV[1]  what       the action: group, digest and instance name, as in `merge`
-- ARGV[2]  candidate  the caller's own execution (group/id), written to the log only after this
-- ARGV[3]  ttl_ms     time limit for the projection to learn of it
-- ARGV[4..] over      executions of the action that the caller knows to have ended
-- returns  the execution to join, or '' if the candidate is the first
-- cost     O(over)
assert(#KEYS == 1 and #ARGV >= 3, 'action_join: 1 key, 3 args or more')
local pending = P .. 'joining:' .. ARGV[1]
local over = {}
for i = 4, #ARGV do over[ARGV[i]] = true end
local found = redis.call('HGET', P .. 'merge', ARGV[1])
-- An ended execution stays in `merge` until its end is projected; in the meantime its successor is the pending one.
if found and not over[found] then return found end
found = redis.call('GET', pending)
if found and not over[found] then return found end
redis.call('SET', pending, ARGV[2], 'PX', ARGV[3])
return ''
