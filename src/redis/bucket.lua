-- Decides over token buckets, all or nothing: src/domain/bucket/spent.rs is
-- the specification, and says why. Both do the same operations on doubles in
-- the same order; whoever changes one changes the other.
--
-- KEYS[i]             one string a bucket: "<spent> <time_us> <emission_us>"
-- ARGV[5i-4 .. 5i]    emission_us capacity cost since_us shadow (0 or 1)
-- reply               now_us admitted, then for each bucket: fits (1) +
--                     damaged (2), whole tokens remaining, wait_us.
--                     All are integers below 2^53.
--
-- Nothing but the three commands is worth its time here, so: no number is read
-- or printed that need not be, and a single bucket makes no table of its own.

local ceil, floor = math.ceil, math.floor
local match, format = string.match, string.format

local TINY = 1 / 8192
local MAX_EMISSION_US = 366 * 86400 * 1000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local admitted = 1


-- The bucket before anything is spent.
local function look(i)
    local a = 5 * i - 5
    local rate = ARGV[a + 1]
    local emission, capacity, cost = tonumber(rate), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
    local spent, at, changed, damaged = 0, now, false, 0

    local value = redis.pcall('GET', KEYS[i])
    if type(value) == 'table' then
        if not string.find(value.err, 'WRONGTYPE', 1, true) then
            -- Raised as the error that it is.
            redis.call('GET', KEYS[i])
        end
        value = ''
    end
    if value then
        local s, t, e
        if #value <= 80 then
            s, t, e = match(value, '^(%d[%d.]*) (%d+) (%d[%d.]*)$')
            s, t = tonumber(s), tonumber(t)
            -- The same text is the same number; most are.
            e = e == rate and emission or tonumber(e)
        end
        if s and t and e and s <= 1000000000 and t < 9007199254740992
            and e >= 1 and e <= MAX_EMISSION_US
        then
            spent, at = s, t
            if at > now then
                at, changed = now, true
            end
            if e ~= emission or spent > capacity then
                local since = math.min(tonumber(ARGV[a + 4]), now)
                if at < since then
                    spent = math.min(math.max(spent - (since - at) / e, 0), capacity)
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

    local seen = (spent < capacity and spent or capacity) - (now - at) / emission
    if seen < 0 then
        seen = 0
    end
    local fits = seen <= capacity - cost
    if not fits and ARGV[a + 5] == '0' then
        admitted = 0
    end
    return emission, capacity, cost, spent, at, changed, damaged, seen, fits
end


-- Spends if all admit, writes what has changed, and answers.
local function conclude(i, emission, capacity, cost, spent, at, changed, damaged, seen, fits)
    local write = changed and seen > 0
    local wait
    if fits then
        if admitted == 1 then
            spent = (seen > 0 and spent - (now - at) / emission or 0) + cost
            at, seen, write = now, spent < capacity and spent or capacity, true
        end
        wait = ceil(seen * emission)
    else
        local top, target = spent < capacity and spent or capacity, capacity - cost
        local after = ceil((top - target) * emission)
        if top - after / emission > target then
            after = after + 1
        end
        wait = at + after - now
    end
    if write then
        local top = spent < capacity and spent or capacity
        local left = ceil((top * emission - (now - at)) / 1000)
        redis.call('SET', KEYS[i], format('%.17g %d %s', spent, at, ARGV[5 * i - 4]),
            'PX', format('%d', (left > 0 and left or 0) + 60000))
    end
    return (fits and 1 or 0) + damaged, floor(capacity - seen), wait
end


local n = #KEYS
if n == 1 then
    local emission, capacity, cost, spent, at, changed, damaged, seen, fits = look(1)
    return { now, admitted, conclude(1, emission, capacity, cost, spent, at, changed, damaged,
        seen, fits) }
end
local looks = {}
for i = 1, n do
    looks[i] = { look(i) }
end
local reply = { now, admitted }
for i = 1, n do
    reply[3 * i], reply[3 * i + 1], reply[3 * i + 2] = conclude(i, unpack(looks[i]))
end
return reply
