-- Returns how far the events are applied, and notes that the caller waits for another process to apply them.
--
-- ARGV[1]  ttl_ms  time for which the process that applies the events knows of that
-- returns  the position, or false when there is no index
-- cost     O(1)
assert(#KEYS == 1 and #ARGV == 1, 'action_follow: 1 key, 1 arg')
redis.call('SET', P .. 'followed', 1, 'PX', ARGV[1])
return is_ready() and tonumber(redis.call('HGET', KEYS[1], 'watermark'))
