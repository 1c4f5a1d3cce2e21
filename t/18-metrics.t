# Prometheus text.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== type, freshness, every series of the contract, and help for each
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- driver
GET("/")
local answer = send { path = "/metrics", from = false }
say(answer.status, answer.headers["content-type"])
say(answer.headers["cache-control"])
local typed = {}
for name, kind in answer.body:gmatch("# TYPE ([%w_]+) (%w+)") do
    if typed[name] then
        say("twice", name)
    end
    typed[name] = kind
end
for _, name in ipairs {
    "sluice_requests_total", "sluice_rule_decisions_total",
    "sluice_store_requests_total", "sluice_store_latency_seconds",
    "sluice_store_up", "sluice_config_generation", "sluice_config_errors",
    "sluice_blocklist_entries", "sluice_bucket_slots_used",
    "sluice_bucket_evictions_total",
} do
    say(name, typed[name])
end
for name in pairs(typed) do
    if not answer.body:find("# HELP " .. name .. " ", 1, true) then
        say("no help for", name)
    end
end
say(answer.body:sub(-1) == "\n")
--- response_body
200 text/plain; version=0.0.4; charset=utf-8
no-store
sluice_requests_total counter
sluice_rule_decisions_total counter
sluice_store_requests_total counter
sluice_store_latency_seconds histogram
sluice_store_up gauge
sluice_config_generation gauge
sluice_config_errors gauge
sluice_blocklist_entries gauge
sluice_bucket_slots_used gauge
sluice_bucket_evictions_total counter
true
--- no_error_log
[error]



=== B109 they add up to what was answered
--- toml
[lists]
blocklist = ["203.0.113.0/24"]
allowlist = ["10.0.0.0/8"]
[[rules]]
name = "a"
rate = "1/d"
capacity = 30
[[rules]]
name = "b"
match = { path = "/b" }
rate = "1/d"
capacity = 10
[[rules]]
name = "s"
mode = "shadow"
rate = "1/d"
capacity = 20
--- driver
local seen = {}
for i = 1, 200 do
    local from = i % 7 == 0 and "203.0.113.1" or i % 11 == 0 and "10.0.0.1"
        or "198.51.100." .. i % 3
    local verdict = GET(i % 2 == 0 and "/b" or "/a", from).verdict
    seen[verdict] = (seen[verdict] or 0) + 1
end
local m = metrics()
local total = 0
for _, verdict in ipairs { "pass", "limited", "blocked", "error" } do
    local n = m['sluice_requests_total{verdict="' .. verdict .. '"}'] or 0
    total = total + n
    if n ~= (seen[verdict] or 0) then
        say(verdict, n, seen[verdict])
    end
end
say(total)
say(seen.limited > 0, seen.blocked > 0)
-- Two rules that can refuse: the refusals are theirs.
say(m['sluice_rule_decisions_total{rule="a",verdict="limited"}']
    + m['sluice_rule_decisions_total{rule="b",verdict="limited"}']
    >= seen.limited)
say((m['sluice_rule_decisions_total{rule="s",verdict="limited"}'] or 0),
    m['sluice_rule_decisions_total{rule="s",verdict="shadow"}'] > 0)
--- response_body
200
true true
true
0 true
--- no_error_log
[error]



=== B106, B107 nothing of a client's becomes a label
--- toml
[[rules]]
name = "a.b-c_D1"
match = { path = "~." }
key = ["ip", "path", "host", "ua", "cookie:sid"]
rate = "1/d"
capacity = 2
--- driver
local function series()
    local n, size = 0, 0
    local found, body = metrics()
    for _ in pairs(found) do
        n = n + 1
    end
    return n, body
end
GET("/warm")
local before = series()
for _, odd in ipairs { '"', "\\", "%0A", "}", "\255", ("x"):rep(4000),
                       '",verdict="' } do
    send { path = "/" .. odd:gsub("[^%w%%]", "%%22"), host = "a.test",
           lines = { "User-Agent: " .. odd, "Cookie: sid=" .. odd } }
    send { path = "/", lines = { "X-Odd: " .. odd, "Referer: " .. odd } }
end
for i = 1, 500 do
    GET("/p" .. i, "198.51.100." .. i % 250)
end
local after, body = series()
say(after == before, #body < 1000000)
-- Every sample is well formed.
local bad = 0
for line in body:gmatch("[^\n]+") do
    if line:sub(1, 1) ~= "#"
        and not line:match('^[a-zA-Z_:][%w_:]*{[^\n]*} [%d%.eE+%-Inf]+$')
        and not line:match('^[a-zA-Z_:][%w_:]* [%d%.eE+%-]+$')
    then
        say("odd", line)
        bad = bad + 1
    end
end
say(bad)
--- response_body
true true
0
--- no_error_log
[error]



=== with Redis: results and a cumulative histogram
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
timeout = "500ms"
[[rules]]
name = "r"
rate = "10/d"
capacity = 1000
--- driver
many(50, function() return GET("/") end)
local m, body = metrics()
say(m['sluice_store_requests_total{result="ok"}'], m["sluice_store_up"])
local last, rising, buckets = 0, true, 0
for value in body:gmatch('sluice_store_latency_seconds_bucket{le="[^"]+"} (%d+)') do
    rising = rising and tonumber(value) >= last
    last = tonumber(value)
    buckets = buckets + 1
end
say(rising, buckets > 3,
    last == m["sluice_store_latency_seconds_count"],
    m['sluice_store_latency_seconds_bucket{le="+Inf"}'] == last,
    m["sluice_store_latency_seconds_sum"] > 0, last)
--- response_body
50 x 200 pass
50 1
true true true true true 50
--- no_error_log
[error]



=== HEAD, and gauges of buckets
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- driver
many(20, function(i) return GET("/", "198.51.100." .. i) end)
say(metrics()["sluice_bucket_slots_used"])
say(metrics()["sluice_bucket_evictions_total"])
say(send { method = "HEAD", path = "/metrics", from = false }.status)
--- response_body
20 x 200 pass
20
0
200
--- no_error_log
[error]
