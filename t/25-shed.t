# What a request is told that its pool does not take.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== 503 as a problem document, with a time to come back
--- backend
--- hooks: user
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 1, max_wait = "20s" }
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
--- driver
local one = hold(1, "k", { path = "/b/0/x", user = "u" })
local two = queue(1, "k", { path = "/b/0/x", user = "v" })
local answer = GET("/b/x")
say(answer.status, answer.verdict, answer.level, answer.rule)
say(answer.headers["content-type"], answer.headers["cache-control"])
local problem = decode(answer.body)
say(problem.status, problem.type, #problem.title > 3)
say(tonumber(answer.headers["content-length"]) == #answer.body)
-- No body for HEAD.
local head = send { method = "HEAD", path = "/b/x" }
say(head.status, head.verdict, head.headers["content-type"])
-- 1 to 5 seconds, drawn at random.
local seen, kinds, odd = {}, 0, 0
for i = 1, 60 do
    local again = GET("/b/x", "203.0.113." .. i).headers["retry-after"] or ""
    if not again:find("^[12345]$") then
        odd = odd + 1
    elseif not seen[again] then
        seen[again] = true
        kinds = kinds + 1
    end
end
say(odd, kinds >= 3)
release("k", 2)
say(finish(one[1]).status, finish(two[1]).status)
say("came", select(3, backend.counts()))
--- timeout: 20
--- response_body
503 shed 3 -
application/problem+json no-store
503 about:blank true
true
503 shed application/problem+json
0 true
200 200
came 2
--- no_error_log
[error]



=== a kept-alive connection and a body go on after a refusal
--- backend
--- hooks: user
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 1, max_wait = "20s" }
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
--- driver
local one = hold(1, "k", { path = "/b/0/x", user = "u" })
local two = queue(1, "k", { path = "/b/0/x", user = "v" })
local c = open()
for i = 1, 5 do
    local body = ("GET /evil HTTP/1.1\r\nHost: a\r\n\r\n"):rep(i * 20)
    c:send(request_text({ method = "POST", path = "/b/x", body = body },
                        "keep-alive"))
    local answer, err = c:answer("POST")
    if not answer then
        say(err)
        break
    end
    say(answer.status, answer.verdict)
    if answer.headers.connection == "close" then
        c:close()
        c = open()
    end
end
c:send(request_text({ path = "/" }, "keep-alive"))
say(c:answer().body)
c:close()
release("k", 2)
say(finish(one[1]).status, finish(two[1]).status)
--- response_body
503 shed
503 shed
503 shed
503 shed
503 shed
ok

200 200
--- no_error_log
[error]



=== degrade.file: its bytes, its type, 503
--- backend
--- hooks: user
--- toml
[[pools]]
name = "html"
match = { path = "/b/html" }
limit = 1
queue = { capacity = 1, max_wait = "20s" }
degrade = { file = "$TMP/busy.html" }
[[pools]]
name = "json"
match = { path = "/b/json" }
limit = 1
queue = { capacity = 1, max_wait = "20s" }
degrade = { file = "$TMP/busy.json" }
[[pools]]
name = "large"
match = { path = "/b/large" }
limit = 1
queue = { capacity = 1, max_wait = "20s" }
degrade = { file = "$TMP/busy.txt" }
[[priority.rules]]
name = "p0"
match = { header = { X-Core = "1" } }
level = 0
--- before_setup
local function spill(name, text)
    local out = assert(io.open("$TMP/" .. name, "wb"))
    out:write(text)
    out:close()
end
spill("busy.html", "<h1>b\195\188sy\0</h1>\r\n\n")
spill("busy.json", '{"busy":true}')
spill("busy.txt", ("0123456789"):rep(30000))
--- driver
local core = { ["X-Core"] = "1" }
local texts = { html = "<h1>b\195\188sy\0</h1>\r\n\n", json = '{"busy":true}',
                large = ("0123456789"):rep(30000) }
for _, name in ipairs { "html", "json", "large" } do
    local path = "/b/" .. name
    local one = hold(1, name, { path = path, user = "u", headers = core })
    local two = start { path = path .. "?hold=" .. name, user = "v",
                        headers = core }
    within(3, function() return pool(name).queued == 1 end)
    local before = select(3, backend.counts())
    local answer = GET(path)
    say(answer.status, answer.verdict, answer.headers["content-type"])
    say(answer.body == texts[name],
        answer.headers["retry-after"]:find("^[12345]$") ~= nil)
    local head = send { method = "HEAD", path = path }
    say(head.status, head.verdict, head.headers["content-type"], #head.body)
    local post = POST(path, "a=1")
    say(post.status, post.body == texts[name])
    -- A part of it, or one that is already there, was not asked of this page.
    say(GET(path, nil, { Range = "bytes=0-1" }).status)
    say("came", select(3, backend.counts()) - before)
    release(name, 2)
    finish(one[1])
    finish(two)
end
--- timeout: 20
--- response_body
503 shed text/html; charset=utf-8
true true
503 shed text/html; charset=utf-8 0
503 true
503
came 0
503 shed application/json; charset=utf-8
true true
503 shed application/json; charset=utf-8 0
503 true
503
came 0
503 shed text/plain; charset=utf-8
true true
503 shed text/plain; charset=utf-8 0
503 true
503
came 0
--- no_error_log
[error]



=== degrade.location: named or not, with a status of its own, once
--- backend
--- hooks: user
--- toml
[[pools]]
name = "named"
match = { path = "/b/named" }
limit = 1
queue = { capacity = 1, max_wait = "20s" }
degrade = { location = "@degraded" }
[[pools]]
name = "plain"
match = { path = ["/b/plain", "/cached"] }
limit = 1
queue = { capacity = 1, max_wait = "20s" }
degrade = { location = "/cached" }
[[pools]]
name = "missing"
match = { path = "/b/missing" }
limit = 1
queue = { capacity = 1, max_wait = "20s" }
degrade = { location = "/b/notthere" }
[[priority.rules]]
name = "p0"
match = { header = { X-Core = "1" } }
level = 0
--- config
    location @degraded {
        content_by_lua_block { ngx.print("cached ", ngx.var.request_uri) }
    }
    location = /cached {
        content_by_lua_block {
            ngx.status = 203
            ngx.print("plain ", ngx.req.get_method())
        }
    }
    location = /b/notthere { return 404; }
--- driver
local core = { ["X-Core"] = "1" }
for _, name in ipairs { "named", "plain", "missing" } do
    local path = "/b/" .. name
    local one = hold(1, name, { path = path, user = "u", headers = core })
    local two = start { path = path .. "?hold=" .. name, user = "v",
                        headers = core }
    within(3, function() return pool(name).queued == 1 end)
    local before = select(3, backend.counts())
    for _ = 1, 5 do
        local answer = GET(path .. "?a=1")
        say(answer.status, answer.verdict, name ~= "missing" and answer.body)
    end
    local head = send { method = "HEAD", path = path }
    say(head.status, head.verdict, #head.body)
    say("came", select(3, backend.counts()) - before)
    release(name, 2)
    finish(one[1])
    finish(two)
    say(within(2, function() return pool(name).in_flight == 0 end))
end
say(metrics()['sluice_requests_total{verdict="shed"}'])
--- timeout: 20
--- response_body
200 shed cached /b/named?a=1
200 shed cached /b/named?a=1
200 shed cached /b/named?a=1
200 shed cached /b/named?a=1
200 shed cached /b/named?a=1
200 shed 0
came 0
true
203 shed plain GET
203 shed plain GET
203 shed plain GET
203 shed plain GET
203 shed plain GET
203 shed 0
came 0
true
404 shed false
404 shed false
404 shed false
404 shed false
404 shed false
404 shed 0
came 0
true
18
--- no_error_log
[error]



=== response.body = "nginx": the status goes through error_page, fields stay
--- backend
--- hooks: user
--- toml
[response]
body = "nginx"
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 1, max_wait = "20s" }
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
--- config
    error_page 503 /sorry;
    location = /sorry { internal; content_by_lua_block { ngx.print("sorry") } }
--- driver
local one = hold(1, "k", { path = "/b/0/x", user = "u" })
local two = queue(1, "k", { path = "/b/0/x", user = "v" })
for _ = 1, 3 do
    local answer = GET("/b/x")
    say(answer.status, answer.verdict, answer.body, (answer.headers[
        "retry-after"] or ""):find("^[12345]$") ~= nil)
end
release("k", 2)
say(finish(one[1]).status, finish(two[1]).status)
say(within(2, function() return pool().in_flight == 0 end), pool().queued)
say(metrics()['sluice_requests_total{verdict="shed"}'])
--- response_body
503 shed sorry true
503 shed sorry true
503 shed sorry true
200 200
true 0
3
--- no_error_log
[error]



=== reasons: full, evicted, timeout, each counted once
--- backend
--- hooks: user
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 2, max_wait = "10s" }
[[pools]]
name = "short"
match = { path = "/short" }
limit = 1
queue = { capacity = 5, max_wait = "200ms" }
[[priority.rules]]
name = "p0"
match = { path = ["/b/0/*", "/short"] }
level = 0
--- config
    location = /short { proxy_pass http://$BACKEND; }
--- driver
local function shed(pool, level, reason)
    return metrics()['sluice_shed_total{pool="' .. pool .. '",level="' .. level
                     .. '",reason="' .. reason .. '"}'] or 0
end
-- timeout: as long as the pool says, and not much longer.
local held = hold(1, "s", { path = "/short", user = "u" })
ngx.update_time()
local began = ngx.now()
local answer = send { path = "/short", user = "v" }
ngx.update_time()
local took = ngx.now() - began
say(answer.status, answer.verdict, took >= 0.19, took < 1.2)
say((tonumber(answer.headers["x-wait-ms"]) or 0) >= 190)
say(shed("short", 0, "timeout"))
release("s")
say(finish(held[1]).status)

-- evicted: the less important make room at once.
local one = hold(1, "k", { path = "/b/0/x", user = "u" })
local low = {}
for i = 1, 2 do
    low[i] = start { path = "/b/x" }
end
within(0.3, function() return pool("b").queued == 2 end)
local high = {}
for i = 1, 2 do
    high[i] = start { path = "/b/0/x?hold=k", user = "v" .. i }
end
say(within(0.3, function() return pool("b").waiting[1] == 2 end))
for i = 1, 2 do
    answer = finish(low[i])
    say(answer.status, answer.verdict, answer.level)
end
say(shed("b", 3, "evicted") + shed("b", 3, "timeout"))
-- full
answer = GET("/b/x")
say(answer.status, answer.verdict, shed("b", 3, "full"))
release("k", 3)
say(finish(one[1]).status, finish(high[1]).status, finish(high[2]).status)
-- They add up to the verdict.
local m = metrics()
local sum = 0
for series, n in pairs(m) do
    if series:find("^sluice_shed_total") then
        sum = sum + n
    end
end
say(sum, m['sluice_requests_total{verdict="shed"}'])
--- timeout: 20
--- response_body
503 shed true true
true
1
200
true
503 shed 3
503 shed 3
2
503 shed 1
200 200 200
4 4



=== hopeless: once the backend's time is known, who cannot be served in time is told at once
--- backend
--- hooks: user
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 100, max_wait = "600ms" }
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
--- driver
-- 10 requests a second, as the pool learns from 25 of them.
many(25, function() return send { path = "/b/0/x?s=0.1", user = "u" } end)
local some = {}
ngx.update_time()
local began = ngx.now()
for i = 1, 30 do
    some[i] = start { path = "/b/0/x?s=0.1", user = "v" .. i }
end
local ok, slowest = 0, 0
for i = 1, 30 do
    local answer = finish(some[i])
    ok = ok + (answer.status == 200 and 1 or 0)
    slowest = math.max(slowest, tonumber(answer.headers["x-wait-ms"]) or 0)
end
local m = metrics()
local hopeless = m['sluice_shed_total{pool="b",level="0",reason="hopeless"}']
-- 6 or 7 can be served; what time the machine loses takes some of them.
say(ok >= 2, ok <= 9, slowest < 1600)
say(hopeless >= 15, m['sluice_requests_total{verdict="shed"}'] == 30 - ok)
say(within(2, function() return pool().in_flight == 0 end), pool().queued)
--- timeout: 20
--- response_body
25 x 200 pass
true true true
true true
true 0



=== one line a pool a second in the error log, never one a request
--- backend
--- hooks: user
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 1
queue = { capacity = 1, max_wait = "20s" }
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
--- driver
local one = hold(1, "k", { path = "/b/0/x", user = "u" })
local two = queue(1, "k", { path = "/b/0/x", user = "v" })
ngx.update_time()
local began = ngx.now()
many(300, function() return GET("/b/x") end)
ngx.update_time()
local took = ngx.now() - began
release("k", 2)
finish(one[1])
finish(two[1])
local lines = 0
for line in io.lines("$TEST_NGINX_SERVROOT/logs/error.log") do
    if line:find("sluice: ", 1, true) and line:find("[error]", 1, true) then
        lines = lines + 1
    end
end
say(lines <= took + 2)
--- timeout: 20
--- response_body
300 x 503 shed
true
--- no_error_log
[alert]
