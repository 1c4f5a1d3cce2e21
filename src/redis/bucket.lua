-- Decides over token buckets, all or nothing: src/domain/bucket/spent.rs is
-- the specification, and says why. Both do the same operations on doubles in
-- the same order; whoever changes one changes the other.
--
-- One decision
--   KEYS[i]           one string a bucket: "<spent> <time_us> <emission_us>"
--   ARGV[5i-4 .. 5i]  emission_us capacity cost since_us shadow (0 or 1)
--   reply             now_us, then for each bucket: fits (1) + damaged (2) +
--                     the decision admits (4) + 8 * whole tokens remaining;
--                     wait_us. All are integers below 2^53, and few: each
--                     costs time on both sides.
--
-- Several, one after the other as if each had been a call of its own
--   KEYS              the buckets' keys, each once
--   ARGV              limits of five words, each once; then the plan
--   plan              two bytes a bucket: limit, + 128 for the last bucket of
--                     its decision; key. Both count from 1, up to 127.
--   reply             now_us, then the buckets of each decision
--
-- Nothing but the three commands is worth its time here, so: no number is read
-- or printed that need not be, a single bucket makes no table of its own, and
-- a bucket that several decisions share is read and written once.

local ceil, floor = math.ceil, math.floor
local match, format, byte = string.match, string.format, string.byte

local TINY = 1 / 8192
local MAX_EMISSION_US = 366 * 86400 * 1000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local admitted = 1


-- What is stored: spent, time, emission. No spent: nothing, or (2) damage.
local function read(key, rate, emission)
    local value = redis.pcall('GET', key)
    if not value then
        return nil, now, emission, 0
    end
    if type(value) == 'table' then
        if not string.find(value.err, 'WRONGTYPE', 1, true) then
            -- Raised as the error that it is.
            redis.call('GET', key)
        end
        return nil, now, emission, 2
    end
    if #value <= 80 then
        local s, t, e = match(value, '^(%d[%d.]*) (%d+) (%d[%d.]*)$')
        s, t = tonumber(s), tonumber(t)
        -- The same text is the same number; most are.
        e = e == rate and emission or tonumber(e)
        if s and t and e and s <= 1000000000 and t < 9007199254740992
            and e >= 1 and e <= MAX_EMISSION_US
        then
            return s, t, e, 0
        end
    end
    return nil, now, emission, 2
end


-- The bucket before anything is spent.
local function look(spent, at, e, emission, capacity, cost, since)
    local changed = false
    if spent then
        if at > now then
            at, changed = now, true
        end
        if e ~= emission or spent > capacity then
            since = math.min(tonumber(since), now)
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
        spent = 0
    end

    local seen = (spent < capacity and spent or capacity) - (now - at) / emission
    if seen < 0 then
        seen = 0
    end
    return spent, at, changed, seen, seen <= capacity - cost
end


-- Spends if all admit: whether to write what, the bucket's two words.
local function conclude(spent, at, changed, seen, fits, damaged, emission, capacity, cost)
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
    local word = (fits and 1 or 0) + damaged + 4 * admitted + 8 * floor(capacity - seen)
    return write, spent, at, word, wait
end


local function write(key, spent, at, rate, emission, capacity)
    local top = spent < capacity and spent or capacity
    local left = ceil((top * emission - (now - at)) / 1000)
    redis.call('SET', key, format('%.17g %d %s', spent, at, rate),
        'PX', format('%d', (left > 0 and left or 0) + 60000))
end


local n = #KEYS

-- One decision over one bucket.
if n == 1 and #ARGV == 5 then
    local key, rate = KEYS[1], ARGV[1]
    local emission, capacity, cost = tonumber(rate), tonumber(ARGV[2]), tonumber(ARGV[3])
    local spent, at, e, damaged = read(key, rate, emission)
    local changed, seen, fits, writes, word, wait
    spent, at, changed, seen, fits = look(spent, at, e, emission, capacity, cost, ARGV[4])
    if not fits and ARGV[5] == '0' then
        admitted = 0
    end
    writes, spent, at, word, wait =
        conclude(spent, at, changed, seen, fits, damaged, emission, capacity, cost)
    if writes then
        write(key, spent, at, rate, emission, capacity)
    end
    return { now, word, wait }
end


-- By number of the limit.
local limits = {}
for i = 1, floor(#ARGV / 5) do
    local a = 5 * i
    limits[i] = {
        rate = ARGV[a - 4], emission = tonumber(ARGV[a - 4]), capacity = tonumber(ARGV[a - 3]),
        cost = tonumber(ARGV[a - 2]), since = ARGV[a - 1], shadow = ARGV[a] ~= '0',
    }
end

-- By number of the key: what is stored now, and the limit under which it was
-- written here.
local held, since, emissions, damages, written = {}, {}, {}, {}, {}
local order = {}


local function look_at(k, limit)
    local emission = limit.emission
    if emissions[k] == nil then
        held[k], since[k], emissions[k], damages[k] = read(KEYS[k], limit.rate, emission)
    end
    local spent, at, changed, seen, fits = look(held[k], since[k], emissions[k],
        emission, limit.capacity, limit.cost, limit.since)
    if not fits and not limit.shadow then
        admitted = 0
    end
    return spent, at, changed, seen, fits
end


local function conclude_at(k, limit, spent, at, changed, seen, fits)
    local writes, word, wait
    writes, spent, at, word, wait = conclude(spent, at, changed, seen, fits, damages[k],
        limit.emission, limit.capacity, limit.cost)
    if writes then
        if not written[k] then
            order[#order + 1] = k
        end
        held[k], since[k], emissions[k], damages[k] = spent, at, limit.emission, 0
        written[k] = limit
    end
    return word, wait
end


local reply, r = { now }, 1


-- Decides over the buckets first to last, given by their keys and limits.
local function decide(keys, wanted, first, last)
    admitted = 1
    if first == last then
        local k, limit = keys[first], wanted[first]
        reply[r + 1], reply[r + 2] = conclude_at(k, limit, look_at(k, limit))
        r = r + 2
    else
        local looks = {}
        for i = first, last do
            looks[i] = { look_at(keys[i], wanted[i]) }
        end
        for i = first, last do
            reply[r + 1], reply[r + 2] = conclude_at(keys[i], wanted[i], unpack(looks[i]))
            r = r + 2
        end
    end
end


local keys, wanted = {}, {}
if #ARGV == 5 * n then
    for i = 1, n do
        keys[i], wanted[i] = i, limits[i]
    end
    decide(keys, wanted, 1, n)
else
    local plan, first = ARGV[#ARGV], 1
    for i = 1, #plan / 2 do
        local limit, key = byte(plan, 2 * i - 1, 2 * i)
        keys[i], wanted[i] = key, limits[limit % 128]
        if limit >= 128 then
            decide(keys, wanted, first, i)
            first = i + 1
        end
    end
end

for i = 1, #order do
    local k = order[i]
    local limit = written[k]
    write(KEYS[k], held[k], since[k], limit.rate, limit.emission, limit.capacity)
end
return reply
