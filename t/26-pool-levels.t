# Who goes first, who may hold level 0, and what status and metrics say of a
# pool.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== level 0 goes before all, and holds only with a verified user
--- backend
--- hooks: user
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 100, max_wait = "10s" }
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
[[priority.rules]]
name = "p1"
match = { path = "/b/1/*" }
level = 1
--- driver
local held = hold(1, "k", { path = "/b/x" })
-- All within 300 ms, which is what the lowest level may wait at least.
local low = start { path = "/b/x?id=three" }
within(0.2, function() return pool().waiting[4] == 1 end)
local one = start { path = "/b/1/x?id=one" }
local forged = start { path = "/b/0/x?id=forged" }
local core = start { path = "/b/0/x?id=core", user = "u" }
within(0.2, function() return pool().waiting[1] == 1 end)
say(unpack(pool().waiting))
release("k")
for _, started in ipairs { held[1], core, one, forged, low } do
    local answer = finish(started)
    say(answer.status, answer.level)
end
say(backend.ids()[1])
--- timeout: 20
--- response_body
1 2 0 1
200 3
200 0
200 1
200 1
200 3
core
--- no_error_log
[error]



=== user_cap: what a user has more of at once is level 1
--- backend
--- hooks: user
--- toml
[priority]
user_cap = 3
[[priority.rules]]
name = "p0"
match = { path = ["/b/0/*", "/free"] }
level = 0
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 20
--- driver
local function levels(started)
    local seen = {}
    for i, one in ipairs(started) do
        seen[i] = finish(one).level
    end
    table.sort(seen)
    return table.concat(seen)
end
for round = 1, 3 do
    local alice = hold(6, "a", { path = "/b/0/x", user = "alice" })
    local bob = hold(2, "b", { path = "/b/0/x", user = "bob" })
    local nobody = hold(2, "c", { path = "/b/0/x" })
    release("a", 6)
    release("b", 2)
    release("c", 2)
    say(levels(alice), levels(bob), levels(nobody))
    within(2, function() return pool().in_flight == 0 end)
end
-- Those that wait count as well.
local most = hold(18, "d", { path = "/b/x" })
local held = hold(2, "e", { path = "/b/0/x", user = "carol" })
local waits = queue(1, "e", { path = "/b/0/x", user = "carol" })
say(pool().waiting[1], pool().waiting[2])
local next = start { path = "/b/0/x?hold=e", user = "carol" }
say(within(0.3, function() return pool().waiting[2] == 1 end),
    pool().waiting[1])
release("e", 4)
held[3], held[4] = waits[1], next
say(levels(held))
release("d", 18)
say(levels(most))
say(within(2, function() return pool().in_flight == 0 end))
--- timeout: 20
--- response_body
000111 00 11
000111 00 11
000111 00 11
1 0
true 1
0001
333333333333333333
true
--- no_error_log
[error]



=== user_cap: what a client leaves is given back, also by those that waited
--- backend
--- hooks: user
--- toml
[priority]
user_cap = 2
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 100, max_wait = "10s" }
--- driver
local held = hold(1, "k", { path = "/b/x" })
for round = 1, 5 do
    local gone = {}
    for i = 1, 2 do
        gone[i] = open()
        gone[i]:send(request_text({ path = "/b/0/x", user = "alice" },
                                  "close"))
    end
    if not within(2, function() return pool().waiting[1] == 2 end) then
        say("not level 0", round, unpack(pool().waiting))
    end
    gone[1]:close()
    gone[2]:close()
    if not within(2, function() return pool().queued == 0 end) then
        say("still there", round)
    end
end
release("k")
say(finish(held[1]).status)
say(send { path = "/b/0/x", user = "alice" }.level)
--- timeout: 20
--- response_body
200
0
--- no_error_log
[error]



=== raise lifts into a better place in the queue
--- backend
--- hooks: none
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 10, max_wait = "10s" }
--- config
    access_by_lua_block {
        require("resty.sluice").access {
            user = ngx.var.http_x_user,
            raise = tonumber(ngx.var.http_x_raise),
        }
    }
    log_by_lua_block { require("resty.sluice").log() }
--- driver
local held = hold(1, "k")
local low = start { path = "/b/x?id=plain" }
within(0.2, function() return pool().queued == 1 end)
local high = start { path = "/b/x?id=raised", user = "u",
                     headers = { ["X-Raise"] = "3" } }
within(0.2, function() return pool().queued == 2 end)
say(unpack(pool().waiting))
release("k")
say(finish(held[1]).level, finish(high).level, finish(low).level)
say(backend.ids()[1])
--- timeout: 20
--- response_body
1 0 0 1
3 0 3
raised
--- no_error_log
[error]



=== as many levels as are configured
--- backend
--- toml
[priority]
levels = 2
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { weights = [7] }
--- driver
local held = hold(1, "k")
local one = start { path = "/b/x" }
say(within(0.3, function() return pool().queued == 1 end))
say(#pool().waiting, pool().waiting[2])
release("k")
say(finish(held[1]).level, finish(one).level)
local _, body = metrics()
local levels = {}
for level in body:gmatch('sluice_queue_waiting{pool="b",level="(%d+)"}') do
    levels[#levels + 1] = level
end
say(unpack(levels))
--- response_body
true
2 1
1 1
0 1
--- no_error_log
[error]



=== status and metrics of pools
--- backend
--- hooks: user
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 2
queue = { capacity = 1, max_wait = "10s" }
[[pools]]
name = "a.b-c_D1"
match = { path = "/never" }
limit = "adaptive"
min = 3
max = 50
start = 7
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
--- driver
local found = status().pools
say(#found)
for _, p in ipairs(found) do
    say(p.name, p.limit, type(p.saturated), p.saturated, p.in_flight,
        #p.waiting)
end
local held = hold(2, "k", { path = "/b/0/x", user = "h#" })
local waits = queue(1, "k", { path = "/b/0/x", user = "w" })
many(3, function() return GET("/b/x") end)
local m, body = metrics()
for _, series in ipairs {
    'sluice_pool_in_flight{pool="b"}', 'sluice_pool_limit{pool="b"}',
    'sluice_pool_limit{pool="a.b-c_D1"}',
    'sluice_queue_waiting{pool="b",level="0"}',
    'sluice_queue_waiting{pool="b",level="3"}',
    'sluice_shed_total{pool="b",level="3",reason="full"}',
    'sluice_requests_total{verdict="shed"}',
} do
    say(series, m[series])
end
for name, kind in pairs { sluice_pool_in_flight = "gauge",
                          sluice_pool_limit = "gauge",
                          sluice_queue_waiting = "gauge",
                          sluice_queue_wait_seconds = "histogram",
                          sluice_shed_total = "counter" } do
    if not body:find("# TYPE " .. name .. " " .. kind .. "\n", 1, true)
        or not body:find("# HELP " .. name .. " ", 1, true)
    then
        say("no type or help", name)
    end
end
sleep(0.3)
release("k", 3)
finish(waits[1])
finish(held[1])
finish(held[2])
within(2, function() return pool("b").in_flight == 0 end)
m, body = metrics()
say(m['sluice_pool_in_flight{pool="b"}'],
    m['sluice_queue_waiting{pool="b",level="0"}'])
-- The histogram: cumulative, ends in what was counted, and has the wait.
local wait = 'sluice_queue_wait_seconds'
local labels = 'pool="b",level="0"'
local count = m[wait .. "_count{" .. labels .. "}"]
local last, rising, n = 0, true, 0
for value in body:gmatch(wait .. '_bucket{pool="b",level="0",le="[^"]+"} (%d+)') do
    value = tonumber(value)
    rising, last, n = rising and value >= last, value, n + 1
end
say(count >= 1, rising, n > 5, last == count,
    m[wait .. "_bucket{" .. labels .. ',le="+Inf"}'] == count)
local sum = m[wait .. "_sum{" .. labels .. "}"]
say(sum >= 0.3, sum < 5)
-- One wait was longer than a quarter of a second.
say(count - (m[wait .. "_bucket{" .. labels .. ',le="0.25"}'] or -1))
-- Well formed, each series once.
local seen, bad = {}, 0
for line in body:gmatch("[^\n]+") do
    if line:sub(1, 1) ~= "#" then
        local series = line:match('^([a-zA-Z_:][%w_:]*{[^\n]*}) [%d%.eE+%-]+$')
            or line:match('^([a-zA-Z_:][%w_:]*) [%d%.eE+%-]+$')
        if not series or seen[series] then
            say("odd", line)
            bad = bad + 1
        else
            seen[series] = true
        end
    end
end
say(bad)
--- timeout: 20
--- response_body
2
b 2 boolean false 0 4
a.b-c_D1 7 boolean false 0 4
3 x 503 shed
sluice_pool_in_flight{pool="b"} 2
sluice_pool_limit{pool="b"} 2
sluice_pool_limit{pool="a.b-c_D1"} 7
sluice_queue_waiting{pool="b",level="0"} 1
sluice_queue_waiting{pool="b",level="3"} 0
sluice_shed_total{pool="b",level="3",reason="full"} 3
sluice_requests_total{verdict="shed"} 3
0 0
true true true true true
true true
1
0
--- no_error_log
[error]



=== no series and no error without pools
--- toml
--- driver
local _, body = metrics()
say(body:find('{pool="', 1, true))
--- response_body
nil
--- no_error_log
[error]



=== the level that a pool gave goes to the backend
--- backend
--- hooks: user
--- toml
[priority]
forward = true
user_cap = 1
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
[[pools]]
name = "b"
match = { path = ["/b/*", "/level"] }
limit = 5
--- http_config
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        location / {
            content_by_lua_block {
                if ngx.var.arg_hold then
                    return require("backend").serve()
                end
                ngx.print(ngx.var.http_x_sluice_level or "none")
            }
        }
    }
--- config
    location /b/ { proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1; }
--- driver
say(send { path = "/b/0/x", user = "u" }.body)
within(2, function() return pool().in_flight == 0 end)
local held = hold(1, "k", { path = "/b/0/x", user = "u" })
say(send { path = "/b/0/x", user = "u" }.body)
say(send { path = "/b/0/x", user = "v", headers = { ["X-Sluice-Level"] = "0" } }
    .body)
say(send { path = "/b/x", headers = { ["X-Sluice-Level"] = "0" } }.body)
release("k")
say(finish(held[1]).level)
--- response_body
0
1
0
3
0
--- no_error_log
[error]
