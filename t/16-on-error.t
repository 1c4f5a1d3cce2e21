# Redis out of reach: never a 500, and what the policy says.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== local: this gateway's own share, with fields
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:1/0"
[[rules]]
name = "r"
rate = "1/d"
capacity = 4
--- driver
many(6, function() return GET("/") end)
show(GET("/", "198.51.100.2"))
local m = metrics()
say(m["sluice_store_up"])
say((m['sluice_store_requests_total{result="error"}'] or 0)
    + (m['sluice_store_requests_total{result="skipped"}'] or 0) > 0)
say(status().store.healthy, status().store.backend)
--- response_body
4 x 200 pass, 2 x 429 limited
200 pass
0
true
false redis



=== local: all-or-nothing and shadow hold there too
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:1/0"
[[rules]]
name = "all"
rate = "1/d"
capacity = 5
[[rules]]
name = "few"
match = { path = "/x" }
rate = "1/d"
capacity = 1
[[rules]]
name = "trial"
mode = "shadow"
rate = "1/d"
capacity = 1
--- driver
many(4, function() return GET("/x") end)
many(6, function() return GET("/y") end)
--- response_body
1 x 200 pass, 3 x 429 limited
4 x 200 pass, 2 x 429 limited



=== allow: passes without fields; rules of this gateway hold
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:1/0"
on_error = "allow"
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
[[rules]]
name = "node"
match = { path = "/node" }
scope = "node"
rate = "1/d"
capacity = 2
[lists]
blocklist = ["203.0.113.9"]
--- driver
many(5, function() return GET("/") end)
show(GET("/"), "ratelimit", "ratelimit-policy")
many(4, function() return GET("/node") end)
show(GET("/", "203.0.113.9"))
--- response_body
5 x 200 pass
200 pass none none
2 x 200 pass, 2 x 429 limited
403 blocked



=== deny: 503 with Retry-After: 1; what needs no Redis is decided as ever
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:1/0"
on_error = "deny"
[[rules]]
name = "r"
match = { path = "/r" }
rate = "1/d"
capacity = 1
[lists]
allowlist = ["10.0.0.0/8"]
blocklist = ["203.0.113.9"]
--- driver
local answer = GET("/r")
show(answer, "retry-after", "content-type", "cache-control", "ratelimit")
local problem = decode(answer.body)
say(problem.type, problem.status, problem.retry_after, type(problem.title))
many(5, function() return GET("/r") end)
show(GET("/free"))
show(GET("/r", "10.0.0.1"))
show(GET("/r", "203.0.113.9"))
say(metrics()['sluice_requests_total{verdict="error"}'])
--- response_body
503 error 1 application/problem+json no-store none
about:blank 503 nil string
5 x 503 error
200 pass
200 pass
403 blocked
6



=== a shadow rule never makes a 503
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:1/0"
on_error = "deny"
[[rules]]
name = "trial"
mode = "shadow"
rate = "1/d"
capacity = 1
--- driver
many(3, function() return GET("/") end)
--- response_body
3 x 200 pass



=== check() while Redis is away
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:1/0"
[[rules]]
name = "r"
match = { path = [] }
rate = "1/d"
capacity = 2
--- driver
for i = 1, 3 do
    say((sluice.check("r", "k")))
end
--- response_body
true
true
false



=== a host that does not answer costs a request no more than the timeout
--- mute
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$MUTE_PORT/0"
timeout = "50ms"
on_error = "allow"
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
--- driver
local slow, worst = 0, 0
for i = 1, 100 do
    ngx.update_time()
    local start = ngx.now()
    local answer = GET("/")
    ngx.update_time()
    local took = ngx.now() - start
    worst = math.max(worst, took)
    if took > 0.03 then
        slow = slow + 1
    end
    if answer.status ~= 200 then
        say(answer.status)
    end
end
-- The breaker opens after a few, and then requests cost almost nothing.
say(worst < 1.05, slow < 30)
--- timeout: 20
--- response_body
true true



=== Redis hangs, and comes back
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
timeout = "50ms"
[[rules]]
name = "r"
rate = "10/d"
capacity = 1000
--- driver
many(3, function() return GET("/") end)
ngx.thread.spawn(function() redis("DEBUG", "SLEEP", "2") end)
sleep(0.05)
local worst = 0
for i = 1, 50 do
    ngx.update_time()
    local start = ngx.now()
    local answer = GET("/")
    ngx.update_time()
    worst = math.max(worst, ngx.now() - start)
    if answer.status ~= 200 then
        say(answer.status)
    end
end
say(worst < 1.05)
sleep(2)
say(within(3, function() return metrics()["sluice_store_up"] == 1 end))
local before = redis("GET", redis("KEYS", "sluice:b:r:*")[1])
GET("/")
say(redis("GET", redis("KEYS", "sluice:b:r:*")[1]) ~= before)
--- timeout: 20
--- response_body
3 x 200 pass
true
true
true
