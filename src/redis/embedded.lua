-- A Redis of the commands that lease.lua and slot.lua use, whose clock is the
-- global `now`, in us. Expiry is by that clock too.
local data, expires = {}, {}
local commands = {}


local function get(key, kind)
    if expires[key] and expires[key] <= now then
        data[key], expires[key] = nil, nil
    end
    if not data[key] and kind then
        data[key] = {}
    end
    return data[key] or {}
end


function commands.TIME()
    return { string.format('%d', math.floor(now / 1000000)), string.format('%d', now % 1000000) }
end


function commands.HGETALL(key)
    local flat = {}
    for field, value in pairs(get(key)) do
        flat[#flat + 1], flat[#flat + 2] = field, value
    end
    return flat
end


function commands.HSET(key, field, value)
    assert(type(value) == 'string', 'a text')
    get(key, true)[field] = value
end


function commands.HDEL(key, field)
    get(key, true)[field] = nil
end


function commands.PEXPIRE(key, ms)
    assert(string.match(ms, '^%d+$'), 'whole ms')
    expires[key] = now + tonumber(ms) * 1000
end


function commands.RPUSH(key, value)
    table.insert(get(key, true), value)
end


function commands.LTRIM(key, first)
    local list = get(key, true)
    while #list > -first do
        table.remove(list, 1)
    end
end


function commands.LRANGE(key)
    return { unpack(get(key)) }
end


function commands.DEL(key)
    data[key] = nil
end


function commands.ZADD(key, score, member)
    assert(string.match(score, '^%d+$'), 'whole us')
    get(key, true)[member] = tonumber(score)
end


function commands.ZREM(key, member)
    get(key, true)[member] = nil
end


function commands.ZRANGE(key)
    local members = {}
    for member in pairs(get(key)) do
        members[#members + 1] = member
    end
    return members
end


function commands.ZREMRANGEBYSCORE(key, first, last)
    local set = get(key, true)
    for member, score in pairs(set) do
        if first == '-inf' and score <= tonumber(last)
            or last == '+inf' and score > tonumber(string.match(first, '^%((%d+)$'))
        then
            set[member] = nil
        end
    end
end


function flush()
    data, expires = {}, {}
end


redis = {
    call = function(name, ...)
        return assert(commands[name], name)(...)
    end,
}
