-- Requeues executions that an executor claimed and did not start.
--
-- ARGV[1]  executor
-- ARGV[2]  now_ms
-- ARGV[3...]  executions (group/id)
-- returns  {id, ...}: the requirements of the requeued executions
-- cost     O(returned executions * log(executions))
assert(#KEYS == 1 and #ARGV >= 2, 'action_give_back: 1 key, 2 args and 1 an execution')
local again = {}
for i = 3, #ARGV do
  again[#again + 1] = give_back(ARGV[i], ARGV[1], tonumber(ARGV[2]))
end
return again
