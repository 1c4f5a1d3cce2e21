# Token buckets of the local store, through nginx.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== capacity, then refusals that spend nothing
--- toml
[[rules]]
name = "day"
rate = "1/d"
capacity = 5
--- driver
for i = 1, 5 do
    say(GET("/").headers.ratelimit)
end
for i = 1, 3 do
    local answer = GET("/")
    show(answer, "ratelimit-policy")
    local wait = tonumber(answer.headers["retry-after"])
    say(wait >= 86395 and wait <= 86400)
end
show(GET("/", "198.51.100.2"))
--- response_body_like chomp
^"day";r=4;t=\d+
"day";r=3;t=\d+
"day";r=2;t=\d+
"day";r=1;t=\d+
"day";r=0;t=\d+
429 limited day "day";q=5;w=432000
true
429 limited day "day";q=5;w=432000
true
429 limited day "day";q=5;w=432000
true
200 pass
$
--- no_error_log
[error]



=== tokens come back one by one, and waiting as told is enough
--- toml
[[rules]]
name = "r"
rate = "1/s"
capacity = 2
--- driver
show(GET("/"))
show(GET("/"))
local refused = GET("/")
show(refused, "retry-after")
sleep(tonumber(refused.headers["retry-after"]) + 0.02)
show(GET("/"))
show(GET("/"))
--- response_body
200 pass
200 pass
429 limited r 1
200 pass
429 limited r
--- no_error_log
[error]



=== B07 tokens do not come in lumps of a second
--- toml
[[rules]]
name = "r"
rate = "10/s"
capacity = 1
--- driver
local admitted, gaps, last = 0, 0, nil
ngx.update_time()
local start = ngx.now()
while true do
    ngx.update_time()
    if ngx.now() - start > 2 then
        break
    end
    if GET("/").status == 200 then
        ngx.update_time()
        admitted = admitted + 1
        if last and ngx.now() - last < 0.09 then
            gaps = gaps + 1
        end
        last = ngx.now()
    end
    sleep(0.015)
end
-- A late observer sees a gap shorter than the one that was kept: not often.
-- Below 15 only where the machine does not get round to asking.
say(admitted >= 8 and admitted <= 21, " ", gaps <= 4)
--- response_body
true   true
--- no_error_log
[error]



=== B06 a bucket does not refill whole once a period
--- toml
[[rules]]
name = "r"
rate = "3/s"
capacity = 3
--- driver
local admitted = 0
ngx.update_time()
local start = ngx.now()
for i = 1, 40 do
    if GET("/").status == 200 then
        admitted = admitted + 1
    end
    sleep(0.1)
end
ngx.update_time()
local bound = 3 + 3 * (ngx.now() - start) + 1
say(admitted <= bound, " ", admitted >= 12)
--- timeout: 20
--- response_body
true   true
--- no_error_log
[error]



=== B08 rates below one a second
--- toml
[[rules]]
name = "r"
rate = "0.5/s"
capacity = 1
--- driver
local admitted = 0
for i = 1, 12 do
    if GET("/").status == 200 then
        admitted = admitted + 1
    end
    sleep(0.4)
end
say(admitted)
--- timeout: 20
--- response_body
3
--- no_error_log
[error]



=== B14 who polls above the limit still gets through
--- toml
[[rules]]
name = "r"
rate = "2/s"
capacity = 1
--- driver
local admitted = 0
for i = 1, 40 do
    if GET("/").status == 200 then
        admitted = admitted + 1
    end
    sleep(0.1)
end
say(admitted >= 8 and admitted <= 11)
--- timeout: 20
--- response_body
true
--- no_error_log
[error]



=== a cost above one
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 10
cost = 3
--- driver
for i = 1, 4 do
    show(GET("/"), "ratelimit")
end
--- response_body_like chomp
^200 pass "r";r=7;t=\d+
200 pass "r";r=4;t=\d+
200 pass "r";r=1;t=\d+
429 limited r "r";r=1;t=\d+
$
--- no_error_log
[error]



=== the cost of this request, from the caller
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 10
--- hooks: none
--- config
    access_by_lua_block {
        require("resty.sluice").access {
            cost = tonumber(ngx.var.arg_cost),
        }
    }
--- driver
show(GET("/?cost=4"), "ratelimit")
show(GET("/"), "ratelimit")
show(GET("/?cost=6"), "ratelimit")
show(GET("/?cost=5"), "ratelimit")
show(GET("/?cost=99", "198.51.100.2"), "ratelimit")
show(GET("/", "198.51.100.2"))
--- response_body_like chomp
^200 pass "r";r=6;t=\d+
200 pass "r";r=5;t=\d+
429 limited r "r";r=5;t=\d+
200 pass "r";r=0;t=\d+
200 pass "r";r=0;t=\d+
429 limited r
$
--- no_error_log
[error]



=== all rules or none spend, in either order
--- toml
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
name = "c-few"
rate = "1/d"
capacity = 1
match = { path = "/y" }
--- driver
many(4, function() return GET("/x") end)
many(4, function() return GET("/y") end)
-- Two of five are spent: what was refused spent nothing.
show(GET("/z"), "ratelimit")
--- response_body_like chomp
^1 x 200 pass, 3 x 429 limited
1 x 200 pass, 3 x 429 limited
200 pass "a-all";r=2;t=\d+
$
--- no_error_log
[error]



=== the longest wait is told
--- toml
[[rules]]
name = "quick"
rate = "1/s"
capacity = 1
[[rules]]
name = "slow"
rate = "1/h"
capacity = 1
[[rules]]
name = "middle"
rate = "1/m"
capacity = 1
--- driver
show(GET("/"))
local answer = GET("/")
show(answer, "ratelimit-policy")
local wait = tonumber(answer.headers["retry-after"])
say(wait > 3590 and wait <= 3600)
--- response_body
200 pass
429 limited slow "slow";q=1;w=3600
true
--- no_error_log
[error]



=== the smallest share left is told, the earlier name on a tie
--- toml
[[rules]]
name = "wide"
rate = "1/d"
capacity = 10
[[rules]]
name = "tight"
rate = "1/d"
capacity = 3
match = { path = "/t" }
[[rules]]
name = "alike"
rate = "1/d"
capacity = 10
--- driver
show(GET("/"), "ratelimit-policy")
show(GET("/t"), "ratelimit")
--- response_body_like chomp
^200 pass "alike";q=10;w=864000
200 pass "tight";r=2;t=\d+
$
--- no_error_log
[error]



=== a shadow rule is counted, never refuses, and is not told
--- toml
[[rules]]
name = "trial"
rate = "1/d"
capacity = 2
mode = "shadow"
[[rules]]
name = "real"
rate = "1/d"
capacity = 5
--- driver
many(5, function() return GET("/") end)
show(GET("/"), "ratelimit-policy")
local m = metrics()
say(m['sluice_rule_decisions_total{rule="trial",verdict="pass"}'])
say(m['sluice_rule_decisions_total{rule="trial",verdict="shadow"}'] >= 3)
say(m['sluice_rule_decisions_total{rule="real",verdict="pass"}'])
say(m['sluice_rule_decisions_total{rule="real",verdict="limited"}'])
-- At most a line a second, as of refusals; every one is in some line.
sleep(1.1)
GET("/", "198.51.100.77")
for _ = 1, 3 do
    GET("/", "198.51.100.77")
end
sleep(0.2)
local lines, sum, example = 0, 0
for line in io.lines("$TEST_NGINX_SERVROOT/logs/error.log") do
    local n = line:match('rule "trial" is in shadow mode and would have refused '
                         .. '(%d+) request')
    if n then
        lines, sum = lines + 1, sum + n
        example = line:match("client ([%d.]+), for example")
    end
end
say(lines, sum, example)
--- response_body
5 x 200 pass
429 limited real "real";q=5;w=432000
2
true
5
1
2 5 198.51.100.77
--- no_error_log
[error]



=== what a refused request would have spent is not taken from a shadow rule
--- toml
[[rules]]
name = "trial"
rate = "1/d"
capacity = 3
mode = "shadow"
[[rules]]
name = "real"
rate = "1/d"
capacity = 1
match = { path = "/real" }
--- driver
many(5, function() return GET("/real") end)
-- One token is spent, two are left: two more pass, the third is a shadow.
many(3, function() return GET("/other") end)
local m = metrics()
say(m['sluice_rule_decisions_total{rule="trial",verdict="pass"}'] >= 3)
local refused = GET("/other")
say(refused.status)
local after = metrics()
say(after['sluice_rule_decisions_total{rule="trial",verdict="shadow"}']
    - m['sluice_rule_decisions_total{rule="trial",verdict="shadow"}'])
say(after['sluice_rule_decisions_total{rule="trial",verdict="pass"}']
    - m['sluice_rule_decisions_total{rule="trial",verdict="pass"}'])
--- response_body
1 x 200 pass, 4 x 429 limited
3 x 200 pass
true
200
1
0
--- no_error_log
[error]



=== missing_key: the address instead, no rule, a refusal
--- toml
[[rules]]
name = "fallback"
match = { path = "/ip" }
key = ["cookie:sid"]
rate = "1/d"
capacity = 2
[[rules]]
name = "skipping"
match = { path = "/skip" }
key = ["cookie:sid"]
missing_key = "skip"
rate = "1/d"
capacity = 2
[[rules]]
name = "denying"
match = { path = "/deny" }
key = ["cookie:sid"]
missing_key = "deny"
status = 401
rate = "1/d"
capacity = 2
--- driver
many(4, function() return GET("/ip") end)
many(3, function() return GET("/ip", "198.51.100.2") end)
many(3, function() return GET("/ip", nil, { Cookie = "sid=a" }) end)
many(5, function() return GET("/skip") end)
many(3, function() return GET("/skip", nil, { Cookie = "sid=a" }) end)
local refused = GET("/deny")
show(refused, "retry-after")
say(refused.body)
show(GET("/deny", nil, { Cookie = "sid=" }), "retry-after")
many(3, function() return GET("/deny", nil, { Cookie = "sid=a" }) end)
--- response_body
2 x 200 pass, 2 x 429 limited
2 x 200 pass, 1 x 429 limited
2 x 200 pass, 1 x 429 limited
5 x 200 pass
2 x 200 pass, 1 x 429 limited
401 limited denying none
{"type":"about:blank","title":"Unauthorized","status":401}
401 limited denying none
2 x 200 pass, 1 x 401 limited
--- no_error_log
[error]



=== one bucket for all
--- toml
[[rules]]
name = "site"
key = []
rate = "1/d"
capacity = 3
--- driver
many(6, function(i) return GET("/", "198.51.100." .. i) end)
--- response_body
3 x 200 pass, 3 x 429 limited
--- no_error_log
[error]



=== B40 two rules with the same numbers are two counters
--- toml
[[rules]]
name = "a"
match = { path = "/a" }
rate = "1/d"
capacity = 2
[[rules]]
name = "b"
match = { path = "/b" }
rate = "1/d"
capacity = 2
--- driver
many(3, function() return GET("/a") end)
many(3, function() return GET("/b") end)
--- response_body
2 x 200 pass, 1 x 429 limited
2 x 200 pass, 1 x 429 limited
--- no_error_log
[error]



=== B86 two rules that match the same hold both
--- toml
[[rules]]
name = "wide"
match = { path = "/a" }
rate = "1/d"
capacity = 5
[[rules]]
name = "tight"
match = { path = "/a" }
rate = "1/d"
capacity = 2
--- driver
many(4, function() return GET("/a") end)
--- response_body
2 x 200 pass, 2 x 429 limited
--- no_error_log
[error]



=== a rule that is switched off
--- toml
[[rules]]
name = "off"
enabled = false
rate = "1/d"
capacity = 1
--- driver
many(3, function() return GET("/") end)
--- response_body
3 x 200 pass
--- no_error_log
[error]



=== rules of one gateway only are the same without Redis
--- toml
[[rules]]
name = "node"
scope = "node"
rate = "1/d"
capacity = 2
--- driver
many(3, function() return GET("/") end)
--- response_body
2 x 200 pass, 1 x 429 limited
--- no_error_log
[error]



=== many rules at once
--- table
rules = (function()
    local rules = {}
    for i = 1, 200 do
        rules[i] = { name = "r" .. i, rate = "1/d", capacity = 400 - i,
                     match = { path = "/*" } }
    end
    rules[200].capacity = 7
    rules[200].rate = "1/d"
    for i = 1, 199 do
        rules[i].rate = "2/d"
    end
    return rules
end)(),
--- driver
many(10, function() return GET("/a") end)
show(GET("/a"), "ratelimit-policy")
--- response_body
7 x 200 pass, 3 x 429 limited
429 limited r200 "r200";q=7;w=604800
--- no_error_log
[error]



=== too many rules are refused
--- before_setup
local rules = {}
for i = 1, 513 do
    rules[i] = { name = "r" .. i, rate = "1/d", capacity = 1 }
end
local ok, err = pcall(require("resty.sluice").setup, { rules = rules })
package.loaded.said = not ok and err:find("512", 1, true) ~= nil
--- config
    location = /said {
        content_by_lua_block { ngx.say(package.loaded.said) }
    }
--- request
GET /said
--- response_body
true
--- no_error_log
[error]



=== B04 the numbers told stay within the bucket
--- toml
[[rules]]
name = "r"
rate = "20/s"
capacity = 10
--- driver
local lowest, highest = 1e9, -1
for i = 1, 60 do
    local left = tonumber(GET("/").headers.ratelimit:match(";r=(%d+);"))
    lowest = math.min(lowest, left)
    highest = math.max(highest, left)
    sleep(i % 20 == 0 and 0.7 or 0.005)
end
say(lowest >= 0, highest <= 9)
--- timeout: 20
--- response_body
true true
--- no_error_log
[error]
