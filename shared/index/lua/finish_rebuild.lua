-- Declares the rebuilt index ready.
--
-- KEYS[1]  forebay:{index}:meta   HASH
-- ARGV[1]  token      of this rebuild
-- ARGV[2]  watermark  position up to which the index holds everything
-- ARGV[3]  order      name of the order of the queues
-- returns  1 ready, 0 the right was lost
-- cost     O(1)
assert(#KEYS == 1 and #ARGV == 3, 'finish_rebuild: 1 key, 3 args')
if redis.call('GET', P .. 'rebuild') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'ready', 1, 'watermark', ARGV[2], 'epoch', ARGV[1], 'order', ARGV[3])
redis.call('DEL', P .. 'rebuild')
return 1
