# The configuration that lives in Redis, changed while nginx runs.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== a rule comes, changes and goes; the file's comes back
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "login"
match = { path = "/login" }
rate = "1/d"
capacity = 50
--- driver
local function policy(path)
    return GET(path or "/login", "198.51.100.9").headers["ratelimit-policy"]
end
say(policy())
redis("HSET", "sluice:config", "rule:login",
      '{"match":{"path":"/login"},"key":["ip"],"rate":"2/d","capacity":40}')
say(within(3, function() return policy() == '"login";q=40;w=1728000' end))
redis("HSET", "sluice:config", "rule:new",
      '{"match":{"path":"/new"},"rate":"1/d","capacity":7}')
say(within(3, function() return policy("/new") == '"new";q=7;w=604800' end))
redis("HSET", "sluice:config", "rule:login", '{"enabled":false}')
say(within(3, function() return policy() == nil end))
redis("HDEL", "sluice:config", "rule:login", "rule:new")
say(within(3, function() return policy() == '"login";q=50;w=4320000' end))
say(policy("/new"))
say(#status().config.errors)
--- timeout: 20
--- response_body
"login";q=50;w=4320000
true
true
true
true
nil
0
--- no_error_log
[error]



=== it is read at once at start
--- redis
HSET sluice:config rule:only '{"rate":"1/d","capacity":3}'
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
--- driver
say(within(3, function()
    return GET("/", "198.51.100.200").headers["ratelimit-policy"] ~= nil
end))
many(4, function() return GET("/") end)
--- response_body
true
3 x 200 pass, 1 x 429 limited
--- no_error_log
[error]



=== B82, B14 buckets keep what was spent when their rule changes
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "down"
match = { path = "/down" }
rate = "1/d"
capacity = 100
[[rules]]
name = "up"
match = { path = "/up" }
rate = "10/h"
capacity = 10
[[rules]]
name = "slow"
match = { path = "/slow" }
rate = "100/s"
capacity = 100
--- driver
-- 10 of 100 spent, lowered to 2: spent is 2 of 2. None left.
many(10, function() return GET("/down") end)
-- Drained at 10/h and raised to 20: 10 are left.
many(12, function() return GET("/up") end)
-- Drained at 100/s and lowered to 1/m: nothing is left.
GET("/slow")
redis("HSET", "sluice:config",
      "rule:down", '{"match":{"path":"/down"},"rate":"1/d","capacity":2}',
      "rule:up", '{"match":{"path":"/up"},"rate":"20/h","capacity":20}')
say(within(3, function()
    return GET("/up", "198.51.100.77").headers["ratelimit-policy"]
        == '"up";q=20;w=3600'
end))
show(GET("/down"), "ratelimit-policy")
many(13, function() return GET("/up") end)
-- Others come to the new limit's full bucket.
many(3, function() return GET("/down", "198.51.100.2") end)
--- timeout: 20
--- response_body
10 x 200 pass
10 x 200 pass, 2 x 429 limited
true
429 limited down "down";q=2;w=172800
10 x 200 pass, 3 x 429 limited
2 x 200 pass, 1 x 429 limited



=== the same for buckets in Redis
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
timeout = "500ms"
[[rules]]
name = "down"
match = { path = "/down" }
rate = "1/d"
capacity = 100
[[rules]]
name = "up"
match = { path = "/up" }
rate = "10/h"
capacity = 10
--- driver
many(10, function() return GET("/down") end)
many(12, function() return GET("/up") end)
redis("HSET", "sluice:config",
      "rule:down", '{"match":{"path":"/down"},"rate":"1/d","capacity":2}',
      "rule:up", '{"match":{"path":"/up"},"rate":"20/h","capacity":20}')
say(within(3, function()
    return GET("/up", "198.51.100.77").headers["ratelimit-policy"]
        == '"up";q=20;w=3600'
end))
show(GET("/down"), "ratelimit-policy")
many(13, function() return GET("/up") end)
many(3, function() return GET("/down", "198.51.100.2") end)
--- timeout: 20
--- response_body
10 x 200 pass
10 x 200 pass, 2 x 429 limited
true
429 limited down "down";q=2;w=172800
10 x 200 pass, 3 x 429 limited
2 x 200 pass, 1 x 429 limited



=== a drained fast bucket that is made slow has nothing
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "r"
rate = "20/s"
capacity = 100
--- driver
local function drain()
    for i = 1, 2000 do
        if GET("/").status == 429 then
            return
        end
    end
end
drain()
redis("HSET", "sluice:config", "rule:r", '{"rate":"1/m","capacity":100}')
say(within(3, function()
    drain()
    return GET("/", "198.51.100.77").headers["ratelimit-policy"]
        == '"r";q=100;w=6000'
end))
many(5, function() return GET("/") end)
--- timeout: 30
--- response_body
true
5 x 429 limited
--- no_error_log
[crit]



=== B84 a bad entry is refused alone, said once, and shown until mended
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "login"
match = { path = "/login" }
rate = "1/d"
capacity = 50
--- driver
local function policy(path)
    return GET(path or "/login", "198.51.100.9").headers["ratelimit-policy"]
end
redis("HSET", "sluice:config", "rule:login",
      '{"match":{"path":"/login"},"rate":"1/d","capacity":40}')
say(within(3, function() return policy() == '"login";q=40;w=3456000' end))
-- Bad: the last good version stays; its neighbours apply.
redis("HSET", "sluice:config", "rule:login",
      '{"match":{"path":"/login"},"rate":"fast","capacity":40}',
      "rule:good", '{"match":{"path":"/good"},"rate":"1/d","capacity":6}',
      "rule:bad", '{"rate":"1/d","capacity":1,"burst":5}')
say(within(3, function() return policy("/good") == '"good";q=6;w=518400' end))
say(policy(), policy("/other"))
local fields = {}
for _, e in ipairs(status().config.errors) do
    fields[#fields + 1] = e.field
end
table.sort(fields)
say(table.concat(fields, " "))
say(metrics()["sluice_config_errors"])
sleep(3)
local lines = 0
for line in io.lines("$TEST_NGINX_SERVROOT/logs/error.log") do
    if line:find("rule:login", 1, true) and line:find("rate", 1, true) then
        lines = lines + 1
    end
end
say(lines)
redis("HDEL", "sluice:config", "rule:bad")
redis("HSET", "sluice:config", "rule:login",
      '{"match":{"path":"/login"},"rate":"1/d","capacity":30}')
say(within(3, function() return policy() == '"login";q=30;w=2592000' end))
say(#status().config.errors, metrics()["sluice_config_errors"])
--- timeout: 20
--- response_body
true
true
"login";q=40;w=3456000 nil
rule:bad.burst rule:login.rate
2
1
true
0 0



=== entries of every wrong kind are errors, and nothing else happens
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "r"
rate = "1/d"
capacity = 50
--- driver
local bad = {
    "", "null", "[]", "7", '"x"', "{", "{}", '{"rate":"5/m"}',
    '{"rate":"1e999/s","capacity":5}', '{"rate":"5/m","capacity":1e999}',
    '{"rate":"5/m","capacity":-1}', '{"rate":"5/m","capacity":NaN}',
    '{"rate":null,"capacity":5}', '{"rate":"5/m","capacity":5,"key":"ip"}',
    '{"rate":"5/m","capacity":5,"match":[]}', "\255\254", "\0",
    '{"rate":"5/m","capacity":5,"match":{"path":"~("}}',
    '{"rate":"5/m","capacity":5,"name":"other"}',
    ("["):rep(10000), ("x"):rep(1000000),
    '{"rate":"5/m","capacity":5,"status":200}',
    '{"enabled":false,"rate":5}', '{"rate":"0/s","capacity":5}',
    '{"rate":"5/m","capacity":0}', '{"rate":"5/0s","capacity":5}',
    '{"rate":"5/m","capacity":3,"cost":5}',
}
local args = { "HSET", "sluice:config" }
for i, value in ipairs(bad) do
    args[#args + 1] = "rule:bad" .. i
    args[#args + 1] = value
end
for _, field in ipairs { "rules:x", "rule:", "rule:a b", "x", "", "mode ",
                         "pool:x", "priority:" } do
    args[#args + 1] = field
    args[#args + 1] = '{"rate":"5/m","capacity":5}'
end
redis(unpack(args))
redis("HSET", "sluice:config", "rule:marker",
      '{"match":{"path":"/marker"},"rate":"1/d","capacity":6}')
say(within(3.5, function()
    return GET("/marker").headers["ratelimit-policy"]
        == '"marker";q=6;w=518400'
end))
say(GET("/", "198.51.100.3").headers["ratelimit-policy"])
local seen, missing = {}, {}
for _, e in ipairs(status().config.errors) do
    seen[e.field:match("^rule:bad%d+") or e.field] = true
end
for i = 1, #bad do
    if not seen["rule:bad" .. i] then
        missing[#missing + 1] = i
    end
end
say("missing", unpack(missing))
say(metrics()["sluice_config_errors"] >= #bad)
--- timeout: 20
--- response_body
true
"r";q=50;w=4320000
missing
true



=== more rules than there can be: an error, and nothing falls over
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "r"
match = { path = "/r" }
rate = "1/d"
capacity = 50
--- driver
local args = { "HSET", "sluice:config" }
for i = 1, 700 do
    args[#args + 1] = "rule:many" .. i
    args[#args + 1] = '{"match":{"path":"/m' .. i .. '"},"rate":"1/d","capacity":6}'
end
redis(unpack(args))
say(within(3, function() return #status().config.errors > 0 end))
say(GET("/r").status, GET("/other").status)
redis("DEL", "sluice:config")
say(within(3, function() return #status().config.errors == 0 end))
show(GET("/r"), "ratelimit-policy")
--- timeout: 20
--- response_body
true
200 200
true
200 pass "r";q=50;w=4320000



=== mode
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[lists]
blocklist = ["203.0.113.9"]
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
--- driver
local function now()
    return GET("/", "198.51.100.1").status
end
now()
say(now(), GET("/", "203.0.113.9").status)
redis("HSET", "sluice:config", "mode", "shadow")
say(within(3, function() return now() == 200 end))
say(GET("/", "203.0.113.9").status)
local m = metrics()
say((m['sluice_rule_decisions_total{rule="r",verdict="shadow"}'] or 0) > 0)
redis("HSET", "sluice:config", "mode", "off")
sleep(3)
say(now(), GET("/", "203.0.113.9").status,
    GET("/", "198.51.100.5").headers.ratelimit)
redis("HSET", "sluice:config", "mode", "loud")
sleep(3)
say(#status().config.errors)
redis("HSET", "sluice:config", "mode", "enforce")
say(within(3, function() return now() == 429 end))
redis("HDEL", "sluice:config", "mode")
sleep(3)
say(now(), #status().config.errors)
--- timeout: 30
--- response_body
429 403
true
200
true
200 200 nil
1
true
429 0



=== priority entries, by their order
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[priority.rules]]
name = "file1"
match = { path = "/a/*" }
level = 2
[[priority.rules]]
name = "file2"
match = { path = "/b/*" }
level = 2
--- driver
local function levels()
    return GET("/a/1").level .. GET("/b/1").level .. GET("/c/1").level
end
say(levels())
redis("HSET", "sluice:config",
      "priority:first", '{"order":500,"match":{"path":"/a/*"},"level":1}',
      "priority:last", '{"order":9000,"match":{"path":["/b/*","/c/*"]},"level":1}')
say(within(3, function() return levels() == "121" end))
redis("HSET", "sluice:config", "priority:file1",
      '{"order":100,"match":{"path":"/a/*"},"level":3}')
say(within(3, function() return levels() == "321" end))
redis("HSET", "sluice:config", "priority:file2", '{"enabled":false}')
say(within(3, function() return levels() == "311" end))
redis("HSET", "sluice:config", "priority:x", '{"level":9,"match":{}}',
      "priority:y", '{"order":"soon","level":1,"match":{}}')
sleep(3)
say(levels(), #status().config.errors)
redis("DEL", "sluice:config")
say(within(3, function() return levels() == "223" end))
--- timeout: 30
--- response_body
223
true
true
true
311 3
true



=== B88 the hash is gone while Redis is well: the file's rules
--- redis
HSET sluice:config rule:r '{"rate":"1/d","capacity":3}'
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
timeout = "500ms"
[[rules]]
name = "r"
rate = "1/d"
capacity = 50
--- driver
local function policy()
    return GET("/", "198.51.100.9").headers["ratelimit-policy"]
end
say(within(3, function() return policy() == '"r";q=3;w=259200' end))
redis("DEL", "sluice:config")
say(within(3, function() return policy() == '"r";q=50;w=4320000' end))
redis("HSET", "sluice:config", "rule:r", '{"rate":"1/d","capacity":4}')
say(within(3, function() return policy() == '"r";q=4;w=345600' end))
redis("FLUSHALL")
say(within(3, function() return policy() == '"r";q=50;w=4320000' end))
many(20, function(i) return GET("/", "203.0.113." .. i) end)
--- timeout: 20
--- response_body
true
true
true
true
20 x 200 pass
--- no_error_log
[error]



=== a hash of another type: the last state stays, and it is said
--- redis
HSET sluice:config rule:r '{"rate":"1/d","capacity":3}'
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
--- driver
local function policy()
    return GET("/", "198.51.100.9").headers["ratelimit-policy"]
end
say(within(3, function() return policy() == '"r";q=3;w=259200' end))
redis("EVAL", "redis.call('del', KEYS[1]) redis.call('sadd', KEYS[1], 'a')",
      1, "sluice:config")
sleep(2.5)
say(policy(), #status().config.errors + #status().warnings > 0)
redis("DEL", "sluice:config")
redis("HSET", "sluice:config", "rule:r", '{"rate":"1/d","capacity":4}')
say(within(3.5, function() return policy() == '"r";q=4;w=345600' end))
--- timeout: 20
--- response_body
true
"r";q=3;w=259200 true
true



=== new rules count among the file's
--- redis
HSET sluice:config rule:zz '{"rate":"1/d","capacity":9,"match":{"path":"/both"}}'
HSET sluice:config rule:aa '{"rate":"1/d","capacity":2,"match":{"path":"/both"}}'
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "mm"
match = { path = "/both" }
rate = "1/d"
capacity = 3
--- driver
local n = 0
say(within(3, function()
    n = n + 1
    return GET("/both", "203.0.113." .. n).headers["ratelimit-policy"]
        == '"aa";q=2;w=172800'
end))
many(4, function() return GET("/both") end)
show(GET("/both"))
say(status().config.generation > 0)
--- response_body
true
2 x 200 pass, 2 x 429 limited
429 limited aa
true



=== the gateway shows itself to the others
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
--- driver
say(within(3, function() return redis("ZCARD", "sluice:gateways") == 1 end))
local entry = redis("ZRANGE", "sluice:gateways", 0, 0, "WITHSCORES")
local age = tonumber(redis("TIME")[1]) - tonumber(entry[2])
say(age >= -1 and age < 12)
--- response_body
true
true
--- no_error_log
[error]



=== what a reload finds in Redis holds at once
--- redis
HSET sluice:config mode shadow
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
--- driver
say(within(3, function()
    GET("/")
    return GET("/").status == 200
end))
--- response_body
true
--- no_error_log
[error]
