# What a client is told.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== B102 RateLimit fields on every answer, admitted or not
--- toml
[[rules]]
name = "login"
rate = "2/m"
capacity = 2
--- driver
show(GET("/"), "ratelimit", "ratelimit-policy", "retry-after")
show(GET("/"), "ratelimit", "ratelimit-policy", "retry-after")
show(GET("/"), "ratelimit", "ratelimit-policy", "retry-after")
sleep(2)
show(GET("/"), "ratelimit", "ratelimit-policy", "retry-after")
--- timeout: 20
--- response_body_like chomp
^200 pass "login";r=1;t=30 "login";q=2;w=60 none
200 pass "login";r=0;t=60 "login";q=2;w=60 none
429 limited login "login";r=0;t=30 "login";q=2;w=60 30
429 limited login "login";r=0;t=28 "login";q=2;w=60 28
$
--- no_error_log
[error]



=== legacy fields
--- toml
[response]
headers = "legacy"
[[rules]]
name = "login"
rate = "2/m"
capacity = 2
--- driver
for i = 1, 3 do
    show(GET("/"), "x-ratelimit-limit", "x-ratelimit-remaining",
         "x-ratelimit-reset", "retry-after", "ratelimit")
end
--- response_body
200 pass 2 1 30 none none
200 pass 2 0 60 none none
429 limited login 2 0 30 30 none
--- no_error_log
[error]



=== no fields
--- toml
[response]
headers = "off"
[[rules]]
name = "login"
rate = "2/m"
capacity = 2
--- driver
for i = 1, 3 do
    show(GET("/"), "x-ratelimit-limit", "ratelimit", "ratelimit-policy",
         "retry-after")
end
--- response_body
200 pass none none none none
200 pass none none none none
429 limited login none none none 30
--- no_error_log
[error]



=== the problem document of a limited request
--- toml
[[rules]]
name = "login"
rate = "2/m"
capacity = 1
--- driver
GET("/")
local answer = GET("/")
say(answer.headers["content-type"], answer.headers["cache-control"])
local problem = decode(answer.body)
local keys = {}
for key in pairs(problem) do
    keys[#keys + 1] = key
end
table.sort(keys)
say(unpack(keys))
say(problem.type, problem.status, problem.retry_after, type(problem.title))
say(tonumber(answer.headers["content-length"]) == #answer.body)
--- response_body
application/problem+json no-store
retry_after status title type
https://iana.org/assignments/http-problem-types#quota-exceeded 429 30 string
true
--- no_error_log
[error]



=== the problem document of a blocked one
--- toml
[lists]
blocklist = ["198.51.100.1"]
--- driver
local answer = GET("/")
show(answer, "content-type", "cache-control", "retry-after")
local problem = decode(answer.body)
say(problem.type, problem.status, problem.retry_after, type(problem.title))
--- response_body
403 blocked application/problem+json no-store none
about:blank 403 nil string
--- no_error_log
[error]



=== HEAD has the fields and no body
--- toml
[lists]
blocklist = ["198.51.100.66"]
[[rules]]
name = "login"
rate = "2/m"
capacity = 1
--- driver
local c = open()
for _, from in ipairs { "198.51.100.1", "198.51.100.1", "198.51.100.66",
                        "198.51.100.1" } do
    c:send(request_text({ method = "HEAD", path = "/", from = from },
                        "keep-alive"))
    local answer, err = c:answer("HEAD")
    if not answer then
        say(err)
        break
    end
    show(answer, "retry-after", "content-type")
end
c:close()
--- response_body
200 pass none text/plain
429 limited login 30 application/problem+json
403 blocked none application/problem+json
429 limited login 30 application/problem+json
--- no_error_log
[error]



=== another status
--- toml
[[rules]]
name = "busy"
rate = "2/m"
capacity = 1
status = 503
--- driver
GET("/")
local answer = GET("/")
show(answer, "retry-after", "ratelimit")
local problem = decode(answer.body)
say(problem.status, problem.retry_after)
--- response_body
503 limited busy 30 "busy";r=0;t=30
503 30
--- no_error_log
[error]



=== 444 closes the connection without a word
--- toml
[[rules]]
name = "bye"
rate = "1/d"
capacity = 1
status = 444
--- driver
say(GET("/").status)
local answer = GET("/")
say(answer.status, answer.err)
local m = metrics()
say(m['sluice_requests_total{verdict="pass"}'],
    m['sluice_requests_total{verdict="limited"}'])
--- response_body
200
0 closed
1 1
--- no_error_log
[error]



=== body = "nginx": error_page is used, the fields stay
--- toml
[response]
body = "nginx"
[lists]
blocklist = ["198.51.100.66"]
[[rules]]
name = "login"
rate = "2/m"
capacity = 1
--- config
    error_page 429 /slow.html;
    error_page 403 /no.html;
    location = /slow.html {
        internal;
        content_by_lua_block { ngx.print("slow down\n") }
    }
    location = /no.html {
        internal;
        content_by_lua_block { ngx.print("no\n") }
    }
--- driver
GET("/")
local answer = GET("/")
show(answer, "retry-after", "ratelimit", "ratelimit-policy")
say(answer.body)
answer = GET("/", "198.51.100.66")
show(answer, "retry-after", "ratelimit")
say(answer.body)
local m = metrics()
say(m['sluice_requests_total{verdict="pass"}'],
    m['sluice_requests_total{verdict="limited"}'],
    m['sluice_requests_total{verdict="blocked"}'])
--- response_body
429 limited login 30 "login";r=0;t=30 "login";q=1;w=30
slow down

403 blocked none none
no

1 1 1
--- no_error_log
[error]



=== body = "problem": an error_page of the site does not replace it
--- toml
[lists]
blocklist = ["198.51.100.66"]
[[rules]]
name = "login"
rate = "2/m"
capacity = 1
--- config
    error_page 403 429 /page.html;
    location = /page.html {
        internal;
        content_by_lua_block { ngx.print("page\n") }
    }
--- driver
GET("/")
for _, from in ipairs { "198.51.100.1", "198.51.100.66" } do
    local answer = GET("/", from)
    show(answer, "content-type")
    say(decode(answer.body).status)
end
--- response_body
429 limited login application/problem+json
429
403 blocked application/problem+json
403
--- no_error_log
[error]



=== an upstream's own answer keeps our fields, and only ours once
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 5
--- http_config
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        location / {
            content_by_lua_block {
                ngx.status = tonumber(ngx.var.arg_s) or 200
                ngx.print("from upstream")
            }
        }
    }
--- config
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
    }
--- driver
show(GET("/?s=200"), "ratelimit-policy")
show(GET("/?s=404"), "ratelimit-policy")
show(GET("/?s=500"), "ratelimit-policy")
--- response_body
200 pass "r";q=5;w=432000
404 pass "r";q=5;w=432000
500 pass "r";q=5;w=432000
--- no_error_log
[error]



=== rounding: never earlier than promised, never 0
--- toml
[[rules]]
name = "fast"
rate = "1000/s"
capacity = 1
[[rules]]
name = "third"
match = { path = "/third" }
rate = "3/s"
capacity = 2
cost = 2
--- driver
local answer
for i = 1, 20 do
    answer = GET("/third")
    if answer.status == 429 then
        break
    end
end
show(answer, "ratelimit-policy", "ratelimit", "retry-after")
--- response_body_like chomp
^429 limited third "third";q=2;w=1 "third";r=[01];t=1 1
$
--- no_error_log
[error]



=== B21 the wait that is told counts what has refilled
--- toml
[[rules]]
name = "r"
rate = "1/5s"
capacity = 1
--- driver
GET("/")
sleep(2.2)
local answer = GET("/")
show(answer, "retry-after")
sleep(tonumber(answer.headers["retry-after"]) + 0.01)
show(GET("/"))
--- timeout: 20
--- response_body
429 limited r 3
200 pass
--- no_error_log
[error]



=== the error log: one line a rule a second, with a number and an example
--- toml
[lists]
blocklist = ["198.51.100.66"]
[[rules]]
name = "one"
match = { path = "/1" }
rate = "1/d"
capacity = 1
[[rules]]
name = "two"
match = { path = "/2" }
rate = "1/d"
capacity = 1
--- driver
local function log_lines(pattern)
    local n, told = 0, 0
    for line in io.lines("$TEST_NGINX_SERVROOT/logs/error.log") do
        local count = line:match(pattern .. " (%d+) request")
        if count and line:find("198.51.100", 1, true) then
            n = n + 1
            told = told + tonumber(count)
        end
    end
    return n, told
end
ngx.update_time()
local start = ngx.now()
for i = 1, 100 do
    GET("/1")
    GET("/2", "198.51.100.2")
    GET("/", "198.51.100.66")
end
ngx.update_time()
local seconds = math.ceil(ngx.now() - start) + 1
sleep(1.1)
GET("/1")
GET("/2", "198.51.100.2")
GET("/", "198.51.100.66")
for _, pattern in ipairs { 'rule "one" refused', 'rule "two" refused',
                           "the lists blocked" } do
    local n, told = log_lines(pattern)
    say(n >= 2, n <= seconds + 2, told)
end
--- timeout: 20
--- response_body
true true 100
true true 100
true true 101



=== the log format of sluice.conf
--- toml
[[rules]]
name = "login"
rate = "1/d"
capacity = 1
--- config
    access_log $TEST_NGINX_SERVER_ROOT/logs/sluice.log sluice;
--- driver
GET("/")
GET("/")
sleep(0.1)
for line in io.lines("$TEST_NGINX_SERVROOT/logs/sluice.log") do
    if line:find("GET / ", 1, true) then
        say(line:match("verdict=%S+"), line:match("rule=%S+"),
            line:match("client=%S+"), line:match("wait_ms=%S+"),
            line:match("upstream_s=%S+"))
    end
end
--- response_body
verdict=pass rule=login client=198.51.100.1 wait_ms=- upstream_s=-
verdict=limited rule=login client=198.51.100.1 wait_ms=- upstream_s=-
--- no_error_log
[error]



=== the verdict variables in a log format
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
[lists]
blocklist = ["198.51.100.66"]
--- http_config
    log_format verdicts '$status $sluice_verdict $sluice_rule $sluice_client $sluice_level $sluice_wait_ms';
--- config
    access_log $TEST_NGINX_SERVER_ROOT/logs/verdicts.log verdicts;
    location = /log {
        access_by_lua_block { }
        log_by_lua_block { }
        access_log off;
        content_by_lua_block {
            ngx.sleep(0.1)
            for line in io.lines("$TEST_NGINX_SERVER_ROOT/logs/verdicts.log") do
                if not line:find("127.0.0.1", 1, true) then
                    ngx.say(line)
                end
            end
        }
    }
--- driver
GET("/")
GET("/")
GET("/", "198.51.100.66")
say(GET("/log").body)
--- response_body_like chomp
^200 pass \S+ 198\.51\.100\.1 3 \S+
429 limited r 198\.51\.100\.1 \S+ \S+
403 blocked - 198\.51\.100\.66 \S+ \S+
--- no_error_log
[error]
