# What a pool gives to requests that it refuses, and pools that change in Redis.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== a page, and the page that replaces it while everything runs
--- before_setup
local f = assert(io.open("$TMP/busy.html", "w"))
f:write("<p>busy")
f:close()
os.execute("chmod 644 $TMP/busy.html")
--- toml
[store]
sync = "100ms"
[[pools]]
name = "backend"
limit = 1
queue = { capacity = 1, max_wait = "20s" }
degrade = { file = "$TMP/busy.html" }
--- config
    location = /slow {
        content_by_lua_block { ngx.sleep(6) ngx.say("late") }
    }
--- driver
local held = {}
for i = 1, 2 do
    held[i] = open()
    held[i]:send("GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
    sleep(0.1)
end
local answer = GET("/slow")
show(answer, "content-type", "content-length")
say(answer.body)
local wait = tonumber(answer.headers["retry-after"])
say(wait >= 1 and wait <= 5)
local head = send { method = "HEAD", path = "/slow" }
show(head, "content-type")
local f = io.open("$TMP/new.html", "w")
f:write("<p>still busy")
f:close()
os.rename("$TMP/new.html", "$TMP/busy.html")
say(within(3, function() return GET("/slow").body == "<p>still busy" end))
-- Gone, it stays in force; the log says so once, and status until it is back.
local function troubles()
    local n = 0
    for _, warning in ipairs(status().warnings) do
        if warning:find("busy.html: ", 1, true)
           and warning:find("last content", 1, true) then
            n = n + 1
        end
    end
    return n
end
os.remove("$TMP/busy.html")
say(within(3, function() return troubles() == 1 end))
say(GET("/slow").body)
local lines = 0
for line in io.lines("$TEST_NGINX_SERVROOT/logs/error.log") do
    if line:find("page $TMP/busy.html", 1, true) then
        lines = lines + 1
    end
end
say(lines)
f = io.open("$TMP/busy.html", "w")
f:write("<p>back")
f:close()
say(within(3, function() return troubles() == 0 end))
say(held[1]:answer().status)
for i = 1, 2 do
    held[i]:close()
end
--- timeout: 30
--- response_body
503 shed text/html; charset=utf-8 7
<p>busy
true
503 shed text/html; charset=utf-8
true
true
<p>still busy
1
true
200



=== a page that is missing when its pool comes from Redis
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
sync = "100ms"
--- config
    location = /slow {
        content_by_lua_block { ngx.sleep(4) ngx.say("late") }
    }
--- driver
os.remove("$TMP/late.json")
redis("HSET", "sluice:config", "pool:backend",
      '{"limit":1,"queue":{"capacity":1,"max_wait":"20s"},'
      .. '"degrade":{"file":"$TMP/late.json"}}')
say(within(3, function() return #status().config.errors == 1 end))
say(status().config.errors[1].field, status().pools[1].name)
local held = {}
for i = 1, 2 do
    held[i] = open()
    held[i]:send("GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
    sleep(0.1)
end
show(GET("/slow"), "content-type")
local f = io.open("$TMP/late.json", "w")
f:write('{"busy":true}')
f:close()
say(within(3, function() return #status().config.errors == 0 end))
show(GET("/slow"), "content-type")
say(GET("/slow").body)
for i = 1, 2 do
    held[i]:close()
end
--- timeout: 30
--- response_body
true
pool:backend.degrade.file backend
503 shed application/problem+json
true
503 shed application/json; charset=utf-8
{"busy":true}



=== pools come, change and go, and a bad one is refused alone
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
sync = "100ms"
[[pools]]
name = "api"
match = { path = "/api/*" }
limit = 9
[[pools]]
name = "rest"
limit = 7
--- driver
local function pools()
    local all = {}
    for i, pool in ipairs(status().pools) do
        all[i] = pool.name .. " " .. pool.limit
    end
    return table.concat(all, ", ")
end
local function becomes(want)
    if within(3, function() return pools() == want end) then
        say(want)
    else
        say("not", want, "but", pools())
    end
end
say(pools())
redis("HSET", "sluice:config", "pool:api", '{"match":{"path":"/api/*"},"limit":3}',
      "pool:zz", '{"match":{"path":"/zz"},"limit":"adaptive","start":5}',
      "pool:aa", '{"match":{"path":"/aa"},"limit":4}')
becomes("api 3, rest 7, aa 4, zz 5")
-- Those that `rest` leaves nothing to.
say(#status().warnings)
redis("HSET", "sluice:config", "pool:api", '{"limit":0}', "pool:rest",
      '{"enabled":false}')
becomes("api 3, aa 4, zz 5")
say(status().config.errors[1].field, #status().config.errors, #status().warnings)
redis("HDEL", "sluice:config", "pool:zz", "pool:rest")
becomes("api 3, rest 7, aa 4")
redis("DEL", "sluice:config")
becomes("api 9, rest 7")
say(#status().config.errors)
-- More than the region has room for.
local args = { "HSET", "sluice:config" }
for i = 1, 5 do
    args[#args + 1] = "pool:many" .. i
    args[#args + 1] = '{"match":{"path":"/' .. i .. '"},"limit":1,"queue":{"capacity":10}}'
end
redis(unpack(args))
say(within(3, function() return #status().config.errors > 0 end))
say(status().config.errors[1].error:match("shm%.size"), GET("/5").status)
--- timeout: 30
--- response_body
api 9, rest 7
api 3, rest 7, aa 4, zz 5
2
api 3, aa 4, zz 5
pool:api.limit 1 0
api 3, rest 7, aa 4
api 9, rest 7
0
true
shm.size 200
