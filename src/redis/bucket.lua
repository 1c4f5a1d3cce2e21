-- Decides over token buckets, all or nothing: src/domain/bucket/spent.rs is
-- the specification, and says why. Both do the same operations on doubles in
-- the same order; whoever changes one changes the other.
--
-- KEYS[i]             one string a bucket: "<spent> <time_us> <emission_us>"
-- ARGV[5i-4 .. 5i]    emission_us capacity cost since_us shadow (0 or 1)
-- reply               now_us admitted, then for each bucket: fits (1) +
--                     damaged (2), whole tokens remaining, wait_us.
--                     All are integers below 2^53.

local min, max, ceil, floor = math.min, math.max, math.ceil, math.floor

local TINY = 1 / 8192
local MAX_EMISSION_US = 366 * 86400 * 1000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local admitted = 1
local looks = {}

for i = 1, #KEYS do
    local a = 5 * i - 5
    local emission, capacity, cost = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
    local since = min(tonumber(ARGV[a + 4]), now)
    local spent, at, changed, damaged = 0, now, false, 0

    local value = redis.pcall('GET', KEYS[i])
    if type(value) == 'table' then
        if not string.find(value.err, 'WRONGTYPE', 1, true) then
            return value
        end
        value = ''
    end
    if value then
        local s, t, e
        if #value <= 80 then
            s, t, e = string.match(value, '^(%d[%d.]*) (%d+) (%d[%d.]*)$')
            s, t, e = tonumber(s), tonumber(t), tonumber(e)
        end
        if s and t and e and s <= 1000000000 and t < 9007199254740992
            and e >= 1 and e <= MAX_EMISSION_US
        then
            spent, at = s, t
            if at > now then
                at, changed = now, true
            end
            if e ~= emission or spent > capacity then
                if at < since then
                    spent = min(max(spent - (since - at) / e, 0), capacity)
                    at, changed = since, true
                elseif e ~= emission then
                    changed = true
                end
            end
            if spent > 0 and spent < TINY then
                spent = TINY
            end
        else
            damaged = 2
        end
    end

    local seen = max(min(spent, capacity) - (now - at) / emission, 0)
    local fits = seen <= capacity - cost
    if not fits and ARGV[a + 5] == '0' then
        admitted = 0
    end
    looks[i] = { emission, capacity, cost, spent, at, changed, damaged, seen, fits }
end

local reply = { now, admitted }
for i = 1, #KEYS do
    local emission, capacity, cost, spent, at, changed, damaged, seen, fits = unpack(looks[i])
    local write = changed and seen > 0
    local wait
    if fits then
        if admitted == 1 then
            spent = (seen > 0 and spent - (now - at) / emission or 0) + cost
            at, seen, write = now, min(spent, capacity), true
        end
        wait = ceil(seen * emission)
    else
        local top, target = min(spent, capacity), capacity - cost
        local after = ceil((top - target) * emission)
        if top - after / emission > target then
            after = after + 1
        end
        wait = at + after - now
    end
    if write then
        local left = ceil((min(spent, capacity) * emission - (now - at)) / 1000)
        redis.call('SET', KEYS[i], string.format('%.17g %.0f %.17g', spent, at, emission),
            'PX', string.format('%.0f', max(left, 0) + 60000))
    end
    reply[3 * i] = (fits and 1 or 0) + damaged
    reply[3 * i + 1] = floor(capacity - seen)
    reply[3 * i + 2] = wait
end
return reply
