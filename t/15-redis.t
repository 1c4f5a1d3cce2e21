# Buckets that live in Redis.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== one string a bucket, with an expiry, in plain decimals (B20, B24)
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "login"
rate = "2/m"
capacity = 2
[[rules]]
name = "slow"
match = { path = "/slow" }
rate = "1/366d"
capacity = 1
[[rules]]
name = "fast"
match = { path = "/fast" }
rate = "1000000/s"
capacity = 1000000000
--- driver
show(GET("/"), "ratelimit-policy")
show(GET("/slow", "198.51.100.2"))
show(GET("/fast", "198.51.100.3"))
show(GET("/"), "ratelimit")
show(GET("/"), "ratelimit", "retry-after")
local keys = redis("KEYS", "*")
table.sort(keys)
for _, key in ipairs(keys) do
    if key:find(":b:", 1, true) then
        local kind, value = redis("TYPE", key), redis("GET", key)
        local ttl = redis("PTTL", key)
        local plain = true
        for word in value:gmatch("%S+") do
            plain = plain and (word:match("^%d+$") or word:match("^%d+%.%d+$"))
                ~= nil
        end
        say(kind, plain, ttl > 0, #key <= 256)
    end
end
local key = redis("KEYS", "sluice:b:login:*100.1*")[1]
local ttl = redis("PTTL", key)
say(ttl > 110000 and ttl <= 121000)
--- response_body_like chomp
^200 pass "login";q=2;w=60
200 pass
200 pass
200 pass "login";r=0;t=60
429 limited login "login";r=0;t=30 30
(?:string true true true
){5}true
$
--- no_error_log
[error]



=== B25 one script call a request, nothing else
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
sync = "30s"
[[rules]]
name = "a"
rate = "10/d"
capacity = 1000
[[rules]]
name = "b"
rate = "10/d"
capacity = 1000
[[rules]]
name = "c"
key = []
rate = "10/d"
capacity = 1000
--- driver
GET("/")
sleep(0.5)
redis("CONFIG", "RESETSTAT")
many(100, function() return GET("/") end)
local calls = {}
for name, n in redis("INFO", "commandstats")
    :gmatch("cmdstat_([%w|]+):calls=(%d+)")
do
    if name ~= "info" and name ~= "config|resetstat" then
        calls[#calls + 1] = name .. "=" .. n
    end
end
table.sort(calls)
-- Calls from inside the script are counted too: that many, not more.
local evalsha
for _, call in ipairs(calls) do
    evalsha = evalsha or call:match("^evalsha=(%d+)$")
end
say(evalsha)
local outside = 0
for _, call in ipairs(calls) do
    if call:match("^expire") or call:match("^eval=") or call:match("^select")
        or call:match("^ping")
    then
        outside = outside + 1
    end
end
say(outside, table.concat(calls, " "):match("script") or "no script")
--- response_body
100 x 200 pass
100
0 no script
--- no_error_log
[error]



=== B16 SCRIPT FLUSH is not noticed
--- redis
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
local counts = {}
for i = 1, 60 do
    if i % 6 == 0 then
        redis("SCRIPT", "FLUSH")
    end
    local status = GET("/").status
    counts[status] = (counts[status] or 0) + 1
end
say(counts[200], counts[429])
local m = metrics()
say(m['sluice_store_requests_total{result="error"}'] or 0,
    m['sluice_store_requests_total{result="timeout"}'] or 0)
--- timeout: 20
--- response_body
50 10
0 0
--- no_error_log
[error]



=== B03, B04 a bucket whose time is in the future, or long ago
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "r"
rate = "5/s"
capacity = 10
--- driver
GET("/")
local key = redis("KEYS", "sluice:b:r:*")[1]
local function shift(seconds)
    local spent, time, rest = redis("GET", key):match("^(%S+) (%d+) (.*)$")
    redis("SET", key, ("%s %.0f %s"):format(spent, tonumber(time)
        + seconds * 1000000, rest), "KEEPTTL")
end
local function burst(n)
    local passed, left_bad = 0, 0
    for i = 1, n do
        local answer = GET("/")
        if answer.status == 200 then
            passed = passed + 1
        end
        local r = tonumber((answer.headers.ratelimit or ""):match(";r=(%d+)"))
        if r and (r < 0 or r > 10) then
            left_bad = left_bad + 1
        end
    end
    return passed, left_bad
end
for _, seconds in ipairs { 172800, -3600, -315360000 } do
    burst(12)
    shift(seconds)
    ngx.update_time()
    local start = ngx.now()
    local passed, bad = burst(60)
    ngx.update_time()
    say(passed <= 10 + 5 * (ngx.now() - start) + 1, bad)
    -- Normal service within capacity / rate and a second.
    say(within(3, function() return GET("/").status == 200 end))
end
--- timeout: 30
--- response_body
true 0
true
true 0
true
true 0
true
--- no_error_log
[error]



=== B26 a bucket overwritten with something else
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "r"
rate = "5/s"
capacity = 5
--- driver
GET("/")
local key = redis("KEYS", "sluice:b:r:*")[1]
local function errors()
    return metrics()['sluice_store_requests_total{result="error"}'] or 0
end
local start = errors()
local n = 0
for _, damage in ipairs {
    { "RPUSH", key, "a", "b" }, { "SET", key, "" }, { "SET", key, "nan" },
    { "SET", key, "inf" }, { "SET", key, "-5" }, { "SET", key, "9e99" },
    { "SET", key, ("x"):rep(1000000) }, { "HSET", key, "spent", "1" },
    { "SET", key, "nan nan nan" }, { "SET", key, "1e999 1 1" },
    { "SET", key, "1 2" }, { "SET", key, "-9e15 1700000000000000 200000" },
    { "SET", key, "1 99999999999999999999 200000" },
    { "SET", key, "1 1700000000000000 0" }, { "SET", key, "\0\0 \0 \0" },
    { "SADD", key, "x" }, { "SET", key, "1 1700000000000000 -1" },
} do
    redis("DEL", key)
    redis(unpack(damage))
    local passed, failed = 0, 0
    ngx.update_time()
    local from = ngx.now()
    for i = 1, 30 do
        local status = GET("/").status
        if status == 200 then
            passed = passed + 1
        elseif status ~= 429 then
            failed = failed + 1
        end
    end
    ngx.update_time()
    local bound = 5 + 5 * (ngx.now() - from) + 1
    local again = within(3.5, function() return GET("/").status == 200 end)
    if failed > 0 or passed > bound or not again then
        say("after", damage[1], tostring(damage[3]):sub(1, 30), passed, failed,
            again)
    end
    n = n + 1
end
say(n)
say(errors() > start)
--- timeout: 60
--- response_body
17
true



=== B32 while Redis refuses: no false numbers, an error counter, few lines
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
on_error = "allow"
[[rules]]
name = "r"
rate = "1/d"
capacity = 5
--- driver
redis("CONFIG", "SET", "maxmemory", "1")
redis("CONFIG", "SET", "maxmemory-policy", "noeviction")
local counts, fields = {}, 0
for i = 1, 200 do
    local answer = GET("/")
    counts[answer.status] = (counts[answer.status] or 0) + 1
    if answer.headers.ratelimit then
        fields = fields + 1
    end
end
say(counts[200], fields)
local m = metrics()
say((m['sluice_store_requests_total{result="error"}'] or 0) > 0,
    m["sluice_store_up"])
local lines = 0
for line in io.lines("$TEST_NGINX_SERVROOT/logs/error.log") do
    if line:find("OOM", 1, true) or line:find("[error]", 1, true) then
        lines = lines + 1
    end
end
say(lines <= 20)
redis("CONFIG", "SET", "maxmemory", "0")
say(within(3, function()
    return GET("/", "198.51.100.3").headers.ratelimit ~= nil
end))
say(within(3, function() return metrics()["sluice_store_up"] == 1 end))
--- timeout: 20
--- response_body
200 0
true 0
true
true
true



=== several rules in one call: all or none, in Redis too
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
timeout = "500ms"
[[rules]]
name = "b-few"
rate = "1/d"
capacity = 1
match = { path = "/x" }
[[rules]]
name = "a-all"
rate = "1/d"
capacity = 5
[[rules]]
name = "trial"
mode = "shadow"
rate = "1/d"
capacity = 2
[[rules]]
name = "node"
scope = "node"
rate = "1/d"
capacity = 4
--- driver
many(4, function() return GET("/x") end)
show(GET("/z"), "ratelimit-policy")
many(6, function() return GET("/z") end)
local m = metrics()
say(m['sluice_rule_decisions_total{rule="trial",verdict="shadow"}'] > 0)
local keys = redis("KEYS", "sluice:b:*")
for i, key in ipairs(keys) do
    keys[i] = key:match("^sluice:b:([^:]+):")
end
table.sort(keys)
say(unpack(keys))
--- response_body
1 x 200 pass, 3 x 429 limited
200 pass "node";q=4;w=345600
2 x 200 pass, 4 x 429 limited
true
a-all b-few trial
--- no_error_log
[error]



=== B23 at the edge of a bucket's refill
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
timeout = "500ms"
[[rules]]
name = "r"
rate = "5/s"
capacity = 1
--- driver
local denied = 0
for i = 1, 30 do
    if GET("/").status ~= 200 then
        denied = denied + 1
    end
    sleep(0.204)
end
say(denied)
--- timeout: 20
--- response_body
0
--- no_error_log
[error]



=== B08, B21 below one a second: the key outlives a refill, the wait counts it
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "r"
rate = "1/10s"
capacity = 1
--- driver
GET("/")
local ttl = redis("PTTL", redis("KEYS", "sluice:b:r:*")[1])
say(ttl >= 9900 and ttl <= 71000)
sleep(2)
show(GET("/"), "retry-after")
sleep(8.02)
show(GET("/"))
--- timeout: 20
--- response_body
true
429 limited r 8
200 pass
--- no_error_log
[error]



=== B15 looking spends nothing and makes no key
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "r"
rate = "1/d"
capacity = 5
--- driver
GET("/")
local key = redis("KEYS", "sluice:b:r:*")[1]
local before, ttl = redis("GET", key), redis("PTTL", key)
for i = 1, 50 do
    metrics()
    status()
end
say(redis("GET", key) == before, redis("PTTL", key) <= ttl,
    #redis("KEYS", "sluice:b:*"))
show(GET("/"), "ratelimit")
--- response_body_like chomp
^true true 1
200 pass "r";r=3;t=\d+
$
--- no_error_log
[error]



=== B39, B47 keys in Redis: no braces, blanks or globs, bounded, apart
--- redis
--- http_config
    large_client_header_buffers 4 32k;
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "r"
key = ["header:X-Id"]
rate = "1/d"
capacity = 1
[[rules]]
name = "r.x"
match = { path = "/x" }
key = ["header:X-Id"]
rate = "1/d"
capacity = 1
--- driver
local ids = { "plain", "{}", "{a}b", "a b", "*", "?", "[x]", "a:b", "\255",
              "\226\130\172", ("k"):rep(8000) .. "a", ("k"):rep(8000) .. "b",
              "%00", "#", "a%3Ab" }
for _, id in ipairs(ids) do
    local first = send { path = "/", lines = { "X-Id: " .. id } }.status
    local second = send { path = "/", lines = { "X-Id: " .. id } }.status
    if first ~= 200 or second ~= 429 then
        say("differs", id:sub(1, 20), first, second)
    end
end
local keys = redis("KEYS", "sluice:b:r:*")
say(#keys == #ids)
for _, key in ipairs(keys) do
    if #key > 256 or key:find("[%s{}*?%[%]\128-\255]") then
        say("odd key", key)
    end
end
--- response_body
true
--- no_error_log
[error]



=== database, prefix, user and password of the URL; nothing sent that is not needed
--- redis
ACL SETUSER gate on >pa:ss/w@rd ~* &* +@all -select
--- toml
[store]
backend = "redis"
url = "redis://gate:pa%3Ass%2Fw%40rd@127.0.0.1:$REDIS_PORT/0"
prefix = "shop1"
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- driver
many(3, function() return GET("/") end)
say(#redis("KEYS", "shop1:b:r:*"), #redis("KEYS", "sluice*"))
redis("ACL", "DELUSER", "gate")
--- response_body
2 x 200 pass, 1 x 429 limited
1 0
--- no_error_log
[error]



=== another database
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/5"
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- driver
many(3, function() return GET("/") end)
say(#redis("KEYS", "*"))
say(redis("INFO", "keyspace"):match("db5:keys=(%d+)") ~= nil)
--- response_body
2 x 200 pass, 1 x 429 limited
0
true
--- no_error_log
[error]



=== the password from a file
--- redis
ACL SETUSER gate on >secret ~* &* +@all
--- user_files
>>> secret
secret
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
username = "gate"
password_file = "$TEST_NGINX_SERVROOT/html/secret"
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- driver
many(3, function() return GET("/") end)
say(#redis("KEYS", "sluice:b:r:*"))
redis("ACL", "DELUSER", "gate")
--- response_body
2 x 200 pass, 1 x 429 limited
1
--- no_error_log
[error]



=== B33 a wrong password fails always, never sometimes
--- redis
ACL SETUSER gate on >secret ~* &* +@all
--- toml
[store]
backend = "redis"
url = "redis://gate:wrong@127.0.0.1:$REDIS_PORT/0"
on_error = "deny"
[[rules]]
name = "r"
rate = "1/d"
capacity = 100
--- driver
many(50, function() return GET("/") end)
say(metrics()["sluice_store_up"])
redis("ACL", "DELUSER", "gate")
--- response_body
50 x 503 error
0



=== B19, B38 a user that may not list, configure or introduce himself
--- redis
ACL SETUSER gate on >x ~* &* +@all -keys -scan -config -client -select -ping
--- toml
[store]
backend = "redis"
url = "redis://gate:x@127.0.0.1:$REDIS_PORT/0"
on_error = "deny"
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- driver
many(3, function() return GET("/") end)
redis("ACL", "DELUSER", "gate")
--- response_body
2 x 200 pass, 1 x 429 limited



=== B19 a user that may not ask for the time: the policy, never silently open
--- redis
ACL SETUSER notime on >x ~* &* +@all -time
--- toml
[store]
backend = "redis"
url = "redis://notime:x@127.0.0.1:$REDIS_PORT/0"
on_error = "deny"
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- driver
local counts = {}
for i = 1, 4 do
    counts[i] = GET("/").status
end
redis("ACL", "DELUSER", "notime")
local said = table.concat(counts, " ")
say(said == "200 200 429 429" or said == "503 503 503 503")
local m = metrics()
say(said:find("503") == nil
    or m['sluice_store_requests_total{result="error"}']
        + m['sluice_store_requests_total{result="skipped"}'] > 0)
--- response_body
true
true



=== B19 without the right to load scripts
--- redis
ACL SETUSER noload on >x ~* &* +@all -script
--- toml
[store]
backend = "redis"
url = "redis://noload:x@127.0.0.1:$REDIS_PORT/0"
on_error = "deny"
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- driver
local answer
local counts = {}
for i = 1, 4 do
    answer = GET("/")
    counts[#counts + 1] = answer.status
end
redis("ACL", "DELUSER", "noload")
-- Either it works with what is allowed, or every request gets the policy.
local said = table.concat(counts, " ")
say(said == "200 200 429 429" or said == "503 503 503 503")
--- response_body
true



=== B36 an idle connection that the server closed
--- redis
CONFIG SET timeout 1
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
timeout = "1s"
on_error = "deny"
sync = "60s"
[[rules]]
name = "r"
rate = "1/d"
capacity = 100
--- driver
show(GET("/"))
for i = 1, 3 do
    sleep(2.5)
    show(GET("/"))
end
redis("CONFIG", "SET", "timeout", "0")
say(metrics()['sluice_store_requests_total{result="error"}'] or 0)
--- timeout: 30
--- response_body
200 pass
200 pass
200 pass
200 pass
0
