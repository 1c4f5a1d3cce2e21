# Pools: slots, who takes one, how long it is held, who waits.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== up to the limit at once; the next wait, and are served when slots are free
--- backend
--- hooks: user
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 3
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
--- driver
local function waited(answer)
    return tonumber(answer.headers["x-wait-ms"]) or 0
end
say(pool().name, pool().limit, pool().in_flight, pool().queued, #pool().waiting)
local first = hold(3, "a")
local later = queue(2, "b", { path = "/b/0/x", user = "u#" })
say(pool().in_flight, pool().waiting[1], pool().queued)
-- What is not in the pool is not held up.
say(GET("/").body)
sleep(0.2)
say("came", select(3, backend.counts()))
release("a", 1)
say(within(2, function() return select(3, backend.counts()) == 4 end))
say(pool().in_flight, pool().queued)
release("b", 2)
for i = 1, 2 do
    local answer = finish(later[i])
    say(answer.status, answer.verdict, answer.level, waited(answer) >= 200,
        waited(answer) < 5000)
end
release("a", 2)
for i = 1, 3 do
    local answer = finish(first[i])
    say(answer.status, answer.verdict, answer.level, waited(answer) < 150)
end
say(within(2, function() return pool().in_flight == 0 end), pool().queued)
say("peak", (select(2, backend.counts())))
say(metrics()['sluice_requests_total{verdict="pass"}'])
--- timeout: 20
--- response_body
b 3 0 0 4
3 2 2
ok

came 3
true
3 1
200 pass 0 true true
200 pass 0 true true
200 pass 3 true
200 pass 3 true
200 pass 3 true
true 0
peak 3
6
--- no_error_log
[error]



=== without a pool nothing waits, and status shows none
--- backend
--- toml
--- driver
local some = hold(30, "a")
say(type(status().pools), #(status().pools or {}))
release("a", 30)
local n = 0
many(30, function() n = n + 1 return finish(some[n]) end)
--- response_body
table 0
30 x 200 pass
--- no_error_log
[error]



=== match, unless, and the first pool that matches
--- backend
--- toml
[[pools]]
name = "some"
match = { path = "/b/some/*", method = ["GET", "POST"] }
unless = { path = "/b/some/not/*" }
limit = 10
[[pools]]
name = "all"
match = { path = "/b/*" }
unless = { header = { X-Skip = "*" } }
limit = 10
--- driver
local function where(req)
    local some = hold(1, "k", req)
    say(req.path, req.method or "GET", pool("some").in_flight,
        pool("all").in_flight)
    release("k")
    finish(some[1])
    within(2, function()
        return pool("some").in_flight + pool("all").in_flight == 0
    end)
end
where { path = "/b/some/x" }
where { path = "/b/some/not/x" }
where { path = "/b/some/x", method = "PUT", body = "x" }
where { path = "/b/some/x", method = "POST", body = "x" }
where { path = "/b/other" }
where { path = "/b/other", headers = { ["X-Skip"] = "1" } }
where { path = "/b/some/not/x", headers = { ["X-Skip"] = "1" } }
--- response_body
/b/some/x GET 1 0
/b/some/not/x GET 0 1
/b/some/x PUT 0 1
/b/some/x POST 1 0
/b/other GET 0 1
/b/other GET 0 0
/b/some/not/x GET 0 0
--- no_error_log
[error]



=== access{ pool = … } names one, whatever matches; an unknown one is a line
--- backend
--- hooks: user
--- toml
[[pools]]
name = "first"
match = { path = "/b/*" }
limit = 10
[[pools]]
name = "named"
match = { path = [] }
limit = 10
--- driver
local function where(name)
    local some = hold(1, "k", { path = "/b/x",
                                headers = { ["X-Pool"] = name } })
    say(name, pool("first").in_flight, pool("named").in_flight)
    release("k")
    say(finish(some[1]).verdict)
    within(2, function()
        return pool("first").in_flight + pool("named").in_flight == 0
    end)
end
where(nil)
where("named")
where("first")
where("nosuch")
many(50, function() return send { path = "/b/x",
                                  headers = { ["X-Pool"] = "nosuch" } } end)
-- One line a second.
local lines = 0
for line in io.lines("$TEST_NGINX_SERVROOT/logs/error.log") do
    if line:find("nosuch", 1, true) and line:find("[error]", 1, true) then
        lines = lines + 1
    end
end
say(lines >= 1, lines <= 4)
--- response_body
nil 1 0
pass
named 0 1
pass
first 1 0
pass
nosuch 1 0
pass
50 x 200 pass
true true
--- error_log
nosuch



=== an allowed client takes its slot, at its own level
--- backend
--- toml
[lists]
allowlist = ["203.0.113.0/24"]
[[rules]]
name = "r"
rate = "1/d"
capacity = 3
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 2
[[priority.rules]]
name = "p1"
match = { path = "/b/1/*" }
level = 1
--- driver
local held = hold(2, "a", { from = "203.0.113.5" })
say(pool().in_flight)
-- Level 1 and allowed, level 3 and not, level 3 and allowed.
local high = queue(1, "b", { path = "/b/1/x", from = "203.0.113.6" })
say(unpack(pool().waiting))
release("a", 1)
local low = start { path = "/b/x", from = "203.0.113.7" }
for _, one in ipairs { held[1], high[1] } do
    release("b", 1)
    local answer = finish(one)
    say(answer.status, answer.verdict, answer.rule, answer.level,
        answer.headers.ratelimit)
end
release("a", 1)
finish(held[2])
say(finish(low).verdict)
-- Their requests were not charged.
many(4, function() return GET("/", "203.0.113.5") end)
say(within(2, function() return pool().in_flight == 0 end))
--- response_body
2
0 1 0 0
200 pass - 3 nil
200 pass - 1 nil
pass
4 x 200 pass
true
--- no_error_log
[error]



=== every internal redirect, and requests with subrequests: one slot
--- backend
--- toml
[[pools]]
name = "b"
match = { path = ["/b/*", "/exec", "/chain", "/auth", "/errors", "/named", "/capture", "/try/*", "/rewritten"] }
limit = 1
queue = { max_wait = "300ms" }
--- config
    location = /exec {
        content_by_lua_block { return ngx.exec("/b/x", ngx.var.args) }
    }
    location = /chain {
        content_by_lua_block { return ngx.exec("/exec", ngx.var.args) }
    }
    location = /named { content_by_lua_block { return ngx.exec("@named") } }
    location @named { proxy_pass http://$BACKEND; rewrite ^ /b/x break; }
    location = /errors {
        error_page 404 = /chain;
        content_by_lua_block { ngx.exit(404) }
    }
    location = /rewritten { rewrite ^ /b/x last; }
    location /try/ { try_files /nothing.txt /b/x; }
    location = /sub {
        access_by_lua_block { }
        proxy_pass http://$BACKEND;
    }
    location = /auth {
        auth_request /sub;
        proxy_pass http://$BACKEND;
    }
    location = /capture {
        content_by_lua_block {
            for _ = 1, 5 do
                ngx.location.capture("/b/inner")
            end
            ngx.print(ngx.location.capture("/b/last").body)
        }
    }
--- driver
for _, path in ipairs { "/b/x", "/exec", "/chain", "/named", "/errors",
                        "/rewritten", "/try/x", "/auth", "/capture" } do
    for _ = 1, 3 do
        local answer = GET(path)
        if answer.verdict ~= "pass" or answer.body ~= "ok\n" then
            say(path, answer.status, answer.verdict, answer.body)
        end
    end
    say(path, within(2, function() return pool().in_flight == 0 end),
        pool().queued)
end
-- While it is redirected it still has its slot, and one only.
local one = hold(1, "k", { path = "/chain" })
say(pool().in_flight, pool().queued)
release("k")
say(finish(one[1]).status)
say("peak", (select(2, backend.counts())))
--- response_body
/b/x true 0
/exec true 0
/chain true 0
/named true 0
/errors true 0
/rewritten true 0
/try/x true 0
/auth true 0
/capture true 0
1 0
200
peak 1



=== called in both phases, and twice in one: one slot
--- backend
--- hooks: none
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { max_wait = "300ms" }
--- config
    rewrite_by_lua_block { require("resty.sluice").access() }
    access_by_lua_block {
        require("resty.sluice").access()
        require("resty.sluice").access()
    }
    log_by_lua_block { require("resty.sluice").log() }
--- driver
many(10, function() return GET("/b/x") end)
local one = hold(1, "k")
say(pool().in_flight, pool().queued)
release("k")
finish(one[1])
say(within(2, function() return pool().in_flight == 0 end))
say(metrics()['sluice_requests_total{verdict="pass"}'])
--- response_body
10 x 200 pass
1 0
true
11
--- no_error_log
[error]



=== in the rewrite phase it waits as well; a body goes on to the backend
--- backend
--- hooks: none
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { max_wait = "10s" }
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
--- config
    rewrite_by_lua_block {
        require("resty.sluice").access {
            user = ngx.var.http_x_user, decline = true,
        }
    }
    log_by_lua_block { require("resty.sluice").log() }
--- driver
local held = hold(1, "k", { path = "/b/0/x", user = "u" })
local some = queue(3, "k", { path = "/b/0/x", user = "v#", method = "POST",
                             body = ("x"):rep(200) })
sleep(0.1)
release("k", 4)
say(finish(held[1]).status)
for i = 1, 3 do
    local answer = finish(some[i])
    say(answer.status, answer.verdict, tonumber(answer.headers["x-wait-ms"])
        >= 100)
end
say(within(2, function() return pool().in_flight == 0 end), pool().queued)
--- response_body
200
200 pass true
200 pass true
200 pass true
true 0
--- no_error_log
[error]



=== without sluice.conf pools hold all the same
--- backend
--- no_include
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 2
queue = { max_wait = "100ms" }
--- driver
local held = hold(2, "k")
say(GET("/b/x").status, pool().in_flight)
release("k", 2)
say(finish(held[1]).status, finish(held[2]).status)
say(within(2, function() return pool().in_flight == 0 end))
--- response_body
503 2
200 200
true
--- no_error_log
[error]



=== what a pool would refuse has spent no token
--- backend
--- hooks: user
--- toml
[[rules]]
name = "r"
match = { path = "/b/*" }
rate = "1/d"
capacity = 3
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 1, max_wait = "10s" }
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
--- driver
local one = hold(1, "k", { path = "/b/0/x", user = "u" })
local two = queue(1, "k", { path = "/b/0/x", user = "v" })
-- The queue is full of its betters.
many(5, function() return GET("/b/x") end)
release("k", 2)
say(finish(one[1]).status, finish(two[1]).status)
-- Two of three tokens are spent.
many(3, function() return GET("/b/x") end)
local m = metrics()
say(m['sluice_shed_total{pool="b",level="3",reason="full"}'])
say(m['sluice_rule_decisions_total{rule="r",verdict="pass"}'],
    m['sluice_rule_decisions_total{rule="r",verdict="limited"}'])
--- response_body
5 x 503 shed
200 200
1 x 200 pass, 2 x 429 limited
5
3 2
--- no_error_log
[error]



=== release = "headers": the slot is free when the answer begins
--- backend
--- toml
[[pools]]
name = "long"
match = { path = "/b/long/*" }
limit = 1
release = "headers"
[[pools]]
name = "whole"
match = { path = "/b/*" }
limit = 1
--- config
    header_filter_by_lua_block { require("resty.sluice").header() }
--- driver
-- The whole request, its slot only until the header.
local some = hold(1, "a", { path = "/b/long/x?header=1" })
say(within(2, function() return pool("long").in_flight == 0 end))
for i = 2, 4 do
    some[i] = hold(1, "a", { path = "/b/long/x?header=1" })[1]
    within(2, function() return pool("long").in_flight == 0 end)
end
say(backend.counts(), pool("long").in_flight)
release("a", 4)
for i = 1, 4 do
    local answer = finish(some[i])
    say(answer.status, answer.verdict, answer.body == "ok\n")
end
-- Without a header yet it is held.
local slow = hold(1, "b", { path = "/b/long/x" })
say(pool("long").in_flight)
release("b")
finish(slow[1])
-- header() changes nothing for the other kind.
local whole = hold(1, "c", { path = "/b/x?header=1" })
sleep(0.1)
say(pool("whole").in_flight)
release("c")
finish(whole[1])
say(within(2, function()
    return pool("whole").in_flight == 0 and pool("long").in_flight == 0
end))
say(GET("/").status)
--- response_body
true
4 0
200 pass true
200 pass true
200 pass true
200 pass true
1
1
true
200
--- no_error_log
[error]



=== a slot is given back without log(), and without header()
--- backend
--- hooks: none
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
release = "headers"
queue = { max_wait = "300ms" }
--- config
    access_by_lua_block { require("resty.sluice").access() }
--- driver
many(20, function() return GET("/b/x") end)
say(within(2, function() return pool().in_flight == 0 end))
--- response_body
20 x 200 pass
true
--- no_error_log
[error]



=== mode shadow: nobody waits, nobody is refused
--- backend
--- redis
HSET sluice:config mode shadow
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
sync = "100ms"
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 1, max_wait = "1s" }
--- driver
say(within(3, function() return status().mode == "shadow" end))
local some = hold(10, "a")
say(select(2, backend.counts()), pool().queued)
release("a", 10)
local n = 0
many(10, function() n = n + 1 return finish(some[n]) end)
say(within(2, function() return pool().in_flight == 0 end), pool().queued)
-- Back to enforcement: the limit holds, and what shadow counted is gone.
redis("HSET", "sluice:config", "mode", "enforce")
say(within(3, function() return status().mode == "enforce" end))
many(10, function() return GET("/b/x") end)
local one = hold(1, "b")
local shed = 0
local more = {}
for i = 1, 5 do
    more[i] = start { path = "/b/x" }
end
for i = 1, 5 do
    shed = shed + (finish(more[i]).status == 503 and 1 or 0)
end
say(shed)
release("b")
say(finish(one[1]).status)
say(within(2, function() return pool().in_flight == 0 end), pool().queued)
--- timeout: 20
--- response_body
true
10 0
10 x 200 pass
true 0
true
10 x 200 pass
5
200
true 0
--- no_error_log
[error]



=== mode off: as if there were no pool
--- backend
--- redis
HSET sluice:config mode off
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
sync = "100ms"
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 1, max_wait = "1s" }
--- driver
say(within(3, function() return status().mode == "off" end))
local some = hold(10, "a")
redis("HSET", "sluice:config", "mode", "enforce")
say(within(3, function() return status().mode == "enforce" end))
release("a", 10)
for i = 1, 10 do
    some[i] = finish(some[i]).status
end
say(unpack(some))
say(within(2, function() return pool().in_flight == 0 end), pool().queued)
many(5, function() return GET("/b/x") end)
--- timeout: 20
--- response_body
true
true
200 200 200 200 200 200 200 200 200 200
true 0
5 x 200 pass
--- no_error_log
[error]



=== the client leaves while it waits: its place is free
--- backend
--- hooks: user
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 2, max_wait = "10s" }
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
--- driver
local one = hold(1, "k", { path = "/b/0/x", user = "u0" })
local gone = {}
for i = 1, 2 do
    gone[i] = open()
    gone[i]:send(request_text({ path = "/b/0/gone?id=gone", user = "u" .. i },
                              "close"))
end
say(within(2, function() return pool().queued == 2 end))
gone[1]:close()
gone[2]:close()
say(within(2, function() return pool().queued == 0 end), pool().in_flight)
local two = queue(2, "k", { path = "/b/0/x", user = "v#" })
release("k", 3)
for _, started in ipairs { one[1], two[1], two[2] } do
    say(finish(started).status)
end
say(within(2, function() return pool().in_flight == 0 end))
-- The backend never heard of the two.
say(#backend.ids())
--- response_body
true
true 1
200
200
200
true
0
