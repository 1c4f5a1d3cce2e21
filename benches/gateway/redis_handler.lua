-- What ours with Redis is compared with: the usual handler, one EVALSHA a
-- request through lua-resty-redis, with a token bucket in one key and one
-- expiry. Nothing is left out that a request needs and nothing is added.
local redis
do
    local ok, module = pcall(require, "nginx.redis")   -- Debian's name
    redis = ok and module or require "resty.redis"
end


local _M = {}

local SCRIPT = [[
local state = redis.call('GET', KEYS[1])
local rate, capacity = tonumber(ARGV[1]), tonumber(ARGV[2])
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local spent = 0
if state then
    local s, at = string.match(state, '^(%S+) (%d+)$')
    spent = math.max(0, tonumber(s) - (now - at) * rate / 1000000)
end
if spent + 1 > capacity then
    return {0, math.ceil((spent + 1 - capacity) / rate)}
end
spent = spent + 1
redis.call('SET', KEYS[1], string.format('%.17g %d', spent, now), 'PX',
           math.ceil(spent / rate * 1000) + 60000)
return {1, math.floor(capacity - spent)}
]]

local sha


function _M.access(host, port)
    local red = redis:new()
    red:set_timeout(1000)
    local ok, err = red:connect(host, port)
    if not ok then
        ngx.log(ngx.ERR, "connect: ", err)
        return ngx.exit(500)
    end
    if not sha then
        sha = red:script("load", SCRIPT)
    end
    local res
    res, err = red:evalsha(sha, 1, "bench:" .. ngx.var.remote_addr,
                           "1000000", "1000000000")
    if not res then
        ngx.log(ngx.ERR, "evalsha: ", err)
        return ngx.exit(500)
    end
    red:set_keepalive(60000, 256)
    if res[1] == 0 then
        ngx.header["Retry-After"] = res[2]
        return ngx.exit(429)
    end
end


return _M
