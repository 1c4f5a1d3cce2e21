-- What ours with Redis is compared with: the usual handler, one EVALSHA a
-- request through lua-resty-redis, its reply read and acted on. Nothing is left
-- out that a request needs and nothing is added.
local redis
do
    local ok, module = pcall(require, "nginx.redis")   -- Debian's name
    redis = ok and module or require "resty.redis"
end


local _M = {}

-- Sluice's own script, so that what is compared is the way to Redis and back,
-- not two scripts. The folder stands in this file's path.
local SCRIPT
do
    local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$")
    local file = assert(io.open(here .. "/../../src/redis/bucket.lua", "rb"))
    SCRIPT = file:read("*a")
    file:close()
end

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
                           "1", "1000000", "1", "0", "0")
    if not res then
        ngx.log(ngx.ERR, "evalsha: ", err)
        return ngx.exit(500)
    end
    red:set_keepalive(60000, 256)
    if res[2] % 8 < 4 then
        ngx.header["Retry-After"] = math.ceil(res[3] / 1000000)
        return ngx.exit(429)
    end
end


return _M
