-- The slots of a small limit, each with an expiry: how many of them this
-- gateway has from now on, for the next lease.
--
-- KEYS[1]  ZSET: "<id>|<n>" → the µs at which it is free again
-- ARGV     1 id, 2 lease_us, 3 limit, 4 slots wanted, those that are used included
-- reply    slots that it has
--
-- What a gateway had is renewed, taken or given back in one step, so a reply
-- that is lost leaves nothing that the next call does not put right, and
-- nobody who stays away keeps a slot beyond the lease.

local call, format = redis.call, string.format

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local key, id, lease_us = KEYS[1], ARGV[1], tonumber(ARGV[2])
local limit, wanted = tonumber(ARGV[3]), tonumber(ARGV[4])

call('ZREMRANGEBYSCORE', key, '-inf', format('%.0f', now))
-- From before the clock was set back.
call('ZREMRANGEBYSCORE', key, format('(%.0f', now + lease_us), '+inf')

local prefix = id .. '|'
local own, others = {}, 0
for _, slot in ipairs(call('ZRANGE', key, 0, -1)) do
    if string.sub(slot, 1, #prefix) == prefix then
        own[#own + 1] = slot
    else
        others = others + 1
    end
end

local n = math.max(math.min(wanted, limit - others), 0)
for _, slot in ipairs(own) do
    if not (tonumber(string.sub(slot, #prefix + 1)) <= n) then
        call('ZREM', key, slot)
    end
end
for i = 1, n do
    call('ZADD', key, format('%.0f', now + lease_us), prefix .. i)
end
call('PEXPIRE', key, format('%.0f', lease_us / 1000 + 1000))
return n
