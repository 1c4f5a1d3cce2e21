-- One limit for all gateways: what this one may have in flight of it, for the
-- next lease. Each gateway calls this some ten times a second for each pool.
--
-- KEYS[1]  hash: "g:<id>" a gateway, "leader" <until_us> <id>, "found" what the
--          leader found, "fresh" <until_us>: until then gateways may hold what
--          is not known here, the hash being younger than their leases, or all
--          of these having ended; "strict" <since_us>: each slot is taken by
--          itself
-- KEYS[2]  list: finished requests on their way to the leader
-- ARGV     1 id, 2 lease_us, 3 the pool's timeout_us, 4 number of the last reply
--          that arrived (0: none), 5 in flight, 6 limit in force here, ghosts
--          and what waits not counted, 7 configured limit or maximum, 8 adaptive
--          (0 or 1), 9 p99 of responses, us (0: not known), 10 gateways known
--          here, 11 the limit found here, then what else (a text), 12 finished
--          requests (a text), 13 levels n, then n weights (the first is not
--          used) and n demands: in flight, waiting, and expected
-- reply    1 now_us, 2 share, 3 limit, 4 live gateways, 5 number of this
--          reply, then 0 or 1: 6 this one leads, 7 configured limits differ,
--          8 so few slots that each is taken by itself; 9 what the leader
--          before found, for a new leader, else ''; then finished requests
--
-- What others hold of the limit is the largest of: what they were granted,
-- what they were granted before until they have said that they know better,
-- and what they have in flight. So shares never add up to more than the limit,
-- whatever replies are lost. Numbers in texts are whole.

local floor, min, max = math.floor, math.min, math.max
local call, format, gmatch = redis.call, string.format, string.gmatch

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local key, requests = KEYS[1], KEYS[2]
local id = ARGV[1]
local lease_us, timeout_us = tonumber(ARGV[2]), tonumber(ARGV[3])
local levels = tonumber(ARGV[13])


local function whole(n)
    return format('%.0f', n)
end


-- A gateway's field: until seq before share held cap adaptive p99 demands…
local function parse(text)
    local n, i = {}, 0
    for word in gmatch(text, '%d+') do
        i = i + 1
        n[i] = tonumber(word)
    end
    if i < 8 then
        return nil
    end
    local demand = {}
    for l = 1, levels do
        demand[l] = n[8 + l] or 0
    end
    return {
        until_us = n[1], seq = n[2], before = n[3], share = n[4], held = n[5], cap = n[6],
        adaptive = n[7], p99 = n[8], demand = demand,
    }
end


local function holds(g)
    return max(g.before, g.share, g.held)
end


-- Who is there -------------------------------------------------------------

local fields = call('HGETALL', key)
local mine, leader, found, fresh, strict, silent
local live, aside, gone = {}, 0, {}
for i = 1, #fields, 2 do
    local name, text = fields[i], fields[i + 1]
    if name == 'leader' then
        leader = text
    elseif name == 'found' then
        found = text
    elseif name == 'fresh' then
        fresh = tonumber(text)
    elseif name == 'strict' then
        strict = tonumber(text)
    else
        local g = string.sub(name, 1, 2) == 'g:' and parse(text)
        if not g then
            gone[#gone + 1] = name
        elseif name == 'g:' .. id then
            mine = g
        elseif g.until_us > now and g.until_us <= now + lease_us then
            g.id = string.sub(name, 3)
            live[#live + 1] = g
        else
            silent = true
            -- Its requests may still be with the backend. (A lease that ends too far
            -- ahead was given before Redis's clock was set back.)
            local longest = g.p99 > 0 and min(g.p99, timeout_us) or timeout_us
            if g.until_us <= now + lease_us and g.until_us + longest > now then
                aside = aside + holds(g)
            else
                gone[#gone + 1] = name
            end
        end
    end
end
-- After an outage all leases have ended, and each gateway goes on by its part of
-- the limit, of which nothing is known here either.
local back = #live == 0 and (mine and mine.until_us <= now or not mine and silent)
if not fresh or fresh > now + lease_us or back then
    fresh = now + lease_us
    call('HSET', key, 'fresh', whole(fresh))
end
for i = 1, #gone do
    call('HDEL', key, gone[i])
end

local demand = {}
for l = 1, levels do
    demand[l] = tonumber(ARGV[13 + levels + l])
end
local own = {
    id = id, held = tonumber(ARGV[5]), cap = tonumber(ARGV[7]), adaptive = tonumber(ARGV[8]),
    p99 = tonumber(ARGV[9]), demand = demand, seq = 1, before = 0,
}
local in_force = tonumber(ARGV[6])
if mine then
    own.seq = mine.seq + 1
    own.before = mine.share
    if tonumber(ARGV[4]) ~= mine.seq then
        -- It may not know of its last share.
        own.before = max(mine.before, mine.share)
    end
    if mine.until_us <= now then
        own.before = 0
    end
end
live[#live + 1] = own
local n = #live


-- The limit ----------------------------------------------------------------

local cap, differs, adaptive = own.cap, 0, 0
for i = 1, n do
    local g = live[i]
    if g.cap ~= own.cap or g.adaptive ~= own.adaptive then
        differs = 1
    end
    cap = min(cap, g.cap)
    adaptive = max(adaptive, g.adaptive)
end

local leads, hand_on = 0, ''
if own.adaptive == 1 then
    local ends, who
    if leader then
        ends, who = string.match(leader, '^(%d+) (.*)$')
        ends = tonumber(ends)
    end
    if not ends or ends <= now or ends > now + lease_us or who == id then
        leads = 1
        -- It knows that it leads, and what was found before, if it has had the last reply.
        local knows = ends and ends > now and who == id and mine
            and tonumber(ARGV[4]) == mine.seq
        if knows or not found then
            found = ARGV[11]
            call('HSET', key, 'found', found)
        else
            hand_on = found
        end
        call('HSET', key, 'leader', whole(now + lease_us) .. ' ' .. id)
    end
end
local limit = cap
if adaptive == 1 and found then
    limit = min(limit, tonumber(string.match(found, '^%d+')) or limit)
end
limit = max(limit, 1)


-- The target of each: level 0 first, then by weight and demand, what is left
-- in proportion to demand again. -------------------------------------------

local wanted, each = {}, {}
for l = 1, levels do
    wanted[l] = 0
    for i = 1, n do
        wanted[l] = wanted[l] + live[i].demand[l]
    end
end
local given, rest = { min(wanted[1], limit) }, limit - min(wanted[1], limit)
for l = 2, levels do
    given[l] = 0
end
for _ = 2, levels do
    local weights = 0
    for l = 2, levels do
        if given[l] < wanted[l] then
            weights = weights + tonumber(ARGV[13 + l])
        end
    end
    if weights == 0 or rest <= 0 then
        break
    end
    local share, capped = rest, false
    for l = 2, levels do
        if given[l] < wanted[l] then
            local most = share * tonumber(ARGV[13 + l]) / weights
            if wanted[l] <= most then
                given[l], rest, capped = wanted[l], rest - wanted[l], true
            end
        end
    end
    if not capped then
        for l = 2, levels do
            if given[l] < wanted[l] then
                given[l] = share * tonumber(ARGV[13 + l]) / weights
            end
        end
        rest = 0
    end
end
local all = 0
for l = 1, levels do
    all = all + wanted[l]
end
local left = limit
for i = 1, n do
    local g, target, asks = live[i], 0, 0
    for l = 1, levels do
        if wanted[l] > 0 then
            target = target + given[l] * g.demand[l] / wanted[l]
        end
        asks = asks + g.demand[l]
    end
    target = target + rest * (asks + 1) / (all + n)
    -- Nearly whole is whole: the sums above are rounded.
    local down = floor(target + 1e-6)
    each[i] = { g = g, target = down, part = target - down }
    left = left - down
end
-- What rounding left over goes to the largest parts, the same whoever counts.
table.sort(each, function(a, b)
    if a.part ~= b.part then
        return a.part > b.part
    end
    return a.g.id < b.g.id
end)
local target, lack, unheard = 0, 0, 0
for i = 1, n do
    local it = each[i]
    it.target = it.target + (i <= left and 1 or 0)
    if it.g == own then
        target = it.target
    else
        lack = max(lack, it.target - it.g.share)
        -- Twice it should have called since: it may have gone, with what it had.
        if it.g.until_us - lease_us < now - lease_us / 4 then
            unheard = unheard + max(holds(it.g) - it.target, 0)
        end
    end
end


-- The share ----------------------------------------------------------------

-- By the larger of who is there and who was known: at a start they come one by
-- one. Where there is nothing to share a slot more or less decides nothing.
local known = max(n, tonumber(ARGV[10]))
if known < 2 or limit >= (strict and 5 or 4) * known then
    if strict then
        call('HDEL', key, 'strict')
    end
    strict = nil
elseif not strict or strict > now then
    strict = now
    call('HSET', key, 'strict', whole(now))
end

local others = aside
for i = 1, n - 1 do
    others = others + holds(live[i])
end
local room = max(limit - others, 0)
local share = min(target, room)
-- What it has by a lease that runs and that it knows of.
local has = mine and own.before == mine.share and mine.share or 0
if has > share then
    -- When the limit falls all have too much, and none would be left anything before
    -- the others have said that they know: for so long each gives up what is above its
    -- part, and no more. What is set aside is nobody's part, nor what those hold
    -- too much who are not heard of.
    local parts = max(limit - aside - unheard, 0)
    share = max(share, min(has, floor(target * parts / limit)))
    -- A slot that changes hands is idle until the other asks: not for one that is
    -- more than the part, while nobody lacks more than one.
    if has == share + 1 and has <= room and lack < 2 then
        share = has
    end
end
if fresh > now then
    -- Others may hold what is not known here yet: no more than what it had.
    local had = max(own.held, in_force)
    share = max(min(share, had), min(own.held, room))
end
own.share = share
if strict and strict + lease_us <= now then
    -- Nobody has a lease of before any more: what counts are the slots.
    share, own.share = target, in_force
end

local record = {
    whole(now + lease_us), whole(own.seq), whole(own.before), whole(share), whole(own.held),
    whole(own.cap), whole(own.adaptive), whole(own.p99),
}
for l = 1, levels do
    record[8 + l] = whole(demand[l])
end
call('HSET', key, 'g:' .. id, table.concat(record, ' '))
call('PEXPIRE', key, whole(floor((lease_us + timeout_us) / 1000) + 1000))

local reply = {
    now, share, limit, n, own.seq, leads, differs, strict and 1 or 0,
    hand_on,
}

-- Finished requests --------------------------------------------------------

if own.adaptive == 1 then
    if ARGV[12] ~= '' then
        call('RPUSH', requests, whole(now) .. ' ' .. ARGV[12])
        call('LTRIM', requests, -64, -1)
        call('PEXPIRE', requests, 5000)
    end
    if leads == 1 then
        local taken = call('LRANGE', requests, 0, -1)
        call('DEL', requests)
        for i = 1, #taken do
            reply[9 + i] = taken[i]
        end
    end
end
return reply
