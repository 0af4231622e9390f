-- In front of every script of the action index. KEYS[1] is forebay:{actions}:meta; the prefix of every other key is taken
-- from it. The keys are listed in src/actions/script.rs.
local P = string.sub(KEYS[1], 1, -5)

local function is_ready() return redis.call('HGET', KEYS[1], 'ready') == '1' end

-- Position, score, latest time and pool of an unfinished execution.
local function entry(key)
  local text = redis.call('HGET', P .. 'live', key)
  if text then return string.match(text, '^(%d+) (%d+) (%d+) (.+)$') end
end

-- Puts an executor among the free ones of its pool, or takes it out.
local function refresh(executor)
  local it = redis.call('HMGET', P .. 'executor:' .. executor, 'pool', 'slots', 'extra', 'open')
  if not it[1] then return 0 end
  local free = it[4] == '1' and tonumber(it[2]) - tonumber(it[3]) - redis.call('SCARD', P .. 'claims:' .. executor) or 0
  if free > 0 then
    redis.call('ZADD', P .. 'free:' .. it[1], free, executor)
  else
    redis.call('ZREM', P .. 'free:' .. it[1], executor)
  end
  return free
end

local function claim(key, executor, pool)
  redis.call('HSET', P .. 'claims', key, executor)
  redis.call('SADD', P .. 'claims:' .. executor, key)
  redis.call('HINCRBY', P .. 'running', pool, 1)
end

-- Whose claim it was, if anyone's.
local function unclaim(key, pool)
  local executor = redis.call('HGET', P .. 'claims', key)
  if not executor then return nil end
  redis.call('HDEL', P .. 'claims', key)
  redis.call('SREM', P .. 'claims:' .. executor, key)
  redis.call('ZREM', P .. 'offered', key)
  redis.call('ZREM', P .. 'asked', key)
  redis.call('HINCRBY', P .. 'running', pool, -1)
  return executor
end

local function wait(key, score, expires, pool)
  redis.call('ZADD', P .. 'waiting:' .. pool, score, key)
  redis.call('ZADD', P .. 'expires', expires, key)
  redis.call('SADD', P .. 'pools', pool)
end

local function unwait(key, pool)
  redis.call('ZREM', P .. 'expires', key)
  return redis.call('ZREM', P .. 'waiting:' .. pool, key) == 1
end

-- Its executor ended it. A heartbeat on its way may still name it, for as long as that takes; it has no slot any more.
local function ended(key, executor, seq)
  redis.call('ZADD', P .. 'ended:' .. executor, seq, key)
  redis.call('ZREMRANGEBYRANK', P .. 'ended:' .. executor, 0, -1025)
end

-- Back to its queue, from an executor that has it not. Returns the executor.
local function give_back(key)
  local seq, score, expires, pool = entry(key)
  if not seq then
    redis.call('ZREM', P .. 'offered', key)
    redis.call('ZREM', P .. 'asked', key)
    return nil
  end
  local executor = unclaim(key, pool)
  if executor then wait(key, score, expires, pool) end
  return executor
end

-- Nothing more is offered to it until it is heard of again.
local function rest(executor)
  if redis.call('EXISTS', P .. 'executor:' .. executor) == 1 then
    redis.call('HSET', P .. 'executor:' .. executor, 'open', 0)
    refresh(executor)
  end
end

-- It lives no more. Its claims stay.
local function bury(executor)
  local pool = redis.call('HGET', P .. 'executor:' .. executor, 'pool')
  redis.call('ZREM', P .. 'executors', executor)
  if pool then
    redis.call('ZREM', P .. 'members:' .. pool, executor)
    redis.call('ZREM', P .. 'free:' .. pool, executor)
  end
end

-- An executor that was awaited after a rebuild is heard of, or will not be.
local function heard(executor)
  if redis.call('SREM', P .. 'awaited', executor) == 1 and redis.call('EXISTS', P .. 'awaited') == 0 then
    redis.call('HSET', KEYS[1], 'hold', 0, 'guard', 0)
  end
end
