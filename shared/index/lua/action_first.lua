-- The first waiting executions of some groups.
--
-- ARGV  ids of requirements, groups and numbers of executions, in turn
-- returns  {{key, score, demand, holders, ...}, ...}
-- cost     O(executions)
assert(#KEYS == 1 and #ARGV % 3 == 0, 'action_first: 1 key, 3 args each')
local found = {}
for i = 1, #ARGV, 3 do found[#found + 1] = first_of(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])) end
return found
