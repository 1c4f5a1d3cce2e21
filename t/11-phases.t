# Where in a request's life access() and log() stand: phases, internal
# redirects, subrequests. One client request is charged once.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== in the rewrite phase
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- hooks: none
--- config
    rewrite_by_lua_block { require("resty.sluice").access() }
    log_by_lua_block { require("resty.sluice").log() }
--- driver
many(4, function() return GET("/") end)
local m = metrics()
say(m['sluice_requests_total{verdict="pass"}'],
    m['sluice_requests_total{verdict="limited"}'])
--- response_body
2 x 200 pass, 2 x 429 limited
2 2
--- no_error_log
[error]



=== in the server's rewrite phase, before a location is chosen
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- hooks: none
--- config
    server_rewrite_by_lua_block { require("resty.sluice").access() }
    log_by_lua_block { require("resty.sluice").log() }
    location = /none { return 204; }
--- driver
many(4, function() return GET("/none") end)
--- response_body
2 x 204 pass, 2 x 429 limited
--- no_error_log
[error]



=== called in both phases, and twice in one: charged once, decided once
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 3
--- hooks: none
--- config
    rewrite_by_lua_block { require("resty.sluice").access() }
    access_by_lua_block {
        require("resty.sluice").access()
        require("resty.sluice").access()
    }
    log_by_lua_block {
        require("resty.sluice").log()
        require("resty.sluice").log()
    }
--- driver
show(GET("/"), "ratelimit")
many(4, function() return GET("/") end)
local m = metrics()
say(m['sluice_requests_total{verdict="pass"}'],
    m['sluice_requests_total{verdict="limited"}'])
--- response_body_like chomp
^200 pass "r";r=2;t=\d+
2 x 200 pass, 2 x 429 limited
3 2
$
--- no_error_log
[error]



=== every internal redirect: charged once, decided once
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 100
--- user_files
>>> site/index.html
index
>>> site/there.txt
there
--- config
    location = /exec {
        content_by_lua_block { return ngx.exec("/target") }
    }
    location = /exec-named {
        content_by_lua_block { return ngx.exec("@named") }
    }
    location @named { content_by_lua_block { ngx.print("named\n") } }
    location = /target { content_by_lua_block { ngx.print("target\n") } }
    location = /error-page {
        error_page 404 = /target;
        content_by_lua_block { ngx.exit(404) }
    }
    location = /error-named {
        error_page 502 = @named;
        proxy_pass http://127.0.0.1:1;
    }
    location = /chain {
        content_by_lua_block { return ngx.exec("/chain2") }
    }
    location = /chain2 {
        error_page 404 = /exec;
        recursive_error_pages on;
        content_by_lua_block { ngx.exit(404) }
    }
    location /try {
        root $TEST_NGINX_SERVER_ROOT/html;
        try_files $uri /nothere.txt /target;
    }
    location /site/ { root $TEST_NGINX_SERVER_ROOT/html; index index.html; }
    location = /rewritten { rewrite ^ /target last; }
    location = /accel {
        proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/accel-source;
        proxy_set_header X-Forwarded-For 198.51.100.200;
    }
    location = /accel-source {
        add_header X-Accel-Redirect /target;
        return 200;
    }
--- driver
local left = 100
for _, path in ipairs { "/target", "/exec", "/exec-named", "/error-page",
                        "/error-named", "/chain", "/try/x", "/site/",
                        "/rewritten", "/nothing" } do
    local before = metrics()['sluice_requests_total{verdict="pass"}'] or 0
    local answer = GET(path)
    local counted = metrics()['sluice_requests_total{verdict="pass"}'] - before
    local r = tonumber(answer.headers.ratelimit:match(";r=(%d+)"))
    say(path, answer.status, left - r, counted)
    left = r
end
show(GET("/accel"))
--- response_body
/target 200 1 1
/exec 200 1 1
/exec-named 200 1 1
/error-page 404 1 1
/error-named 200 1 1
/chain 404 1 1
/try/x 200 1 1
/site/ 200 1 1
/rewritten 200 1 1
/nothing 200 1 1
200 pass



=== subrequests are not charged, nor decided
--- toml
[[rules]]
name = "all"
rate = "1/d"
capacity = 10
[[rules]]
name = "inner"
match = { path = "/inner" }
rate = "1/d"
capacity = 1
--- config
    location = /inner {
        content_by_lua_block { ngx.print(ngx.is_subrequest and "sub " or "main ") }
    }
    location = /capture {
        content_by_lua_block {
            for i = 1, 5 do
                local res = ngx.location.capture("/inner")
                ngx.print(res.status, " ", res.body)
            end
            local a, b, c = ngx.location.capture_multi {
                { "/inner" }, { "/inner" }, { "/inner" },
            }
            ngx.print(a.status, b.status, c.status)
        }
    }
--- driver
local answer = GET("/capture")
say(answer.body)
say((answer.headers.ratelimit:match('^(.*);t=')))
show(GET("/inner"))
show(GET("/inner"))
local m = metrics()
say(m['sluice_requests_total{verdict="pass"}'],
    m['sluice_requests_total{verdict="limited"}'])
--- response_body
200 sub 200 sub 200 sub 200 sub 200 sub 200200200
"all";r=9
200 pass
429 limited inner
2 1
--- no_error_log
[error]



=== auth_request: in the rewrite phase we come before it, and its subrequest is free
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- hooks: none
--- config
    rewrite_by_lua_block { require("resty.sluice").access() }
    log_by_lua_block { require("resty.sluice").log() }
    location = /auth {
        internal;
        content_by_lua_block {
            ngx.exit(ngx.var.http_x_pass and 204 or 401)
        }
    }
    location /private {
        auth_request /auth;
        content_by_lua_block { ngx.print("in\n") }
    }
--- driver
show(GET("/private", nil, { ["X-Pass"] = "1" }), "ratelimit-policy")
-- Denied by the other module after our admission.
show(GET("/private"))
show(GET("/private", nil, { ["X-Pass"] = "1" }))
local m = metrics()
say(m['sluice_requests_total{verdict="pass"}'],
    m['sluice_requests_total{verdict="limited"}'])
--- response_body
200 pass "r";q=2;w=172800
401 pass
429 limited r
2 1
--- no_error_log
[error]



=== satisfy any: an admission in the rewrite phase grants nothing
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 3
--- hooks: none
--- user_files
>>> htpasswd
alice:{PLAIN}secret
--- config
    rewrite_by_lua_block { require("resty.sluice").access() }
    log_by_lua_block { require("resty.sluice").log() }
    location /secret {
        satisfy any;
        deny all;
        auth_basic "x";
        auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        content_by_lua_block { ngx.print("in\n") }
    }
--- driver
say(GET("/secret").status)
say(GET("/secret", nil, { Authorization = "Basic YWxpY2U6c2VjcmV0" }).status)
say(GET("/secret").status)
say(GET("/secret", nil, { Authorization = "Basic YWxpY2U6c2VjcmV0" }).status)
--- response_body
401
200
401
429



=== satisfy any with an access handler: `decline` keeps the door as it was
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- hooks: none
--- config
    location /open {
        satisfy any;
        deny all;
        access_by_lua_block {
            require("resty.sluice").access { decline = true }
        }
        content_by_lua_block { ngx.print("in\n") }
    }
    location /all {
        satisfy all;
        allow all;
        access_by_lua_block {
            require("resty.sluice").access { decline = true }
        }
        content_by_lua_block { ngx.print("in\n") }
    }
    location /later {
        access_by_lua_block {
            require("resty.sluice").access { decline = true }
            ngx.log(ngx.ERR, "not reached")
        }
        content_by_lua_block { ngx.print("in\n") }
    }
--- driver
show(GET("/open"))
show(GET("/open"))
show(GET("/open"))
many(3, function() return GET("/all", "198.51.100.2") end)
show(GET("/later", "198.51.100.3"))
--- response_body
403 pass
403 pass
429 limited r
2 x 200 pass, 1 x 429 limited
200 pass
--- no_error_log
not reached



=== without log() nothing is lost, and the next request is clean
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 3
--- hooks: none
--- config
    access_by_lua_block { require("resty.sluice").access() }
    location = /named {
        log_by_lua_block { }
        content_by_lua_block { ngx.print("x") }
    }
--- driver
many(5, function() return GET("/") end)
many(2, function() return GET("/named", "198.51.100.2") end)
local m = metrics()
say(m['sluice_requests_total{verdict="pass"}'],
    m['sluice_requests_total{verdict="limited"}'])
--- response_body
3 x 200 pass, 2 x 429 limited
2 x 200 pass
5 2
--- no_error_log
[error]



=== log() without access() counts nothing and fails nothing
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
--- hooks: none
--- config
    log_by_lua_block { require("resty.sluice").log() }
--- driver
many(3, function() return GET("/") end)
say(metrics()['sluice_requests_total{verdict="pass"}'] or 0)
--- response_body
3 x 200 -
0
--- no_error_log
[error]



=== requests on one connection are each their own
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 3
--- driver
local c = open()
for i = 1, 6 do
    c:send(request_text({ path = "/" }, "keep-alive"))
    show(c:answer())
end
c:close()
--- response_body
200 pass
200 pass
200 pass
429 limited r
429 limited r
429 limited r
--- no_error_log
[error]



=== pipelined requests
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- pipelined_requests eval
["GET /", "GET /", "GET /", "GET /"]
--- error_code eval
[200, 200, 429, 429]
--- no_error_log
[error]



=== a handler of the site after ours: its refusal is not our verdict
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 5
--- hooks: none
--- config
    rewrite_by_lua_block { require("resty.sluice").access() }
    log_by_lua_block { require("resty.sluice").log() }
    location = /exit { access_by_lua_block { ngx.exit(403) } content_by_lua_block { } }
    location = /error { access_by_lua_block { error("site") } content_by_lua_block { } }
    location = /deny { deny all; content_by_lua_block { } }
--- driver
for _, path in ipairs { "/exit", "/error", "/deny" } do
    show(GET(path))
end
show(GET("/"), "ratelimit")
say(metrics()['sluice_requests_total{verdict="pass"}'])
--- response_body_like chomp
^403 pass
500 pass
403 pass
200 pass "r";r=1;t=\d+
4
$



=== clients that leave early are charged and counted once
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 100
--- config
    location = /slow {
        lua_check_client_abort on;
        content_by_lua_block { ngx.sleep(0.3) ngx.print("late") }
    }
--- driver
for i = 1, 5 do
    local c = open()
    c:send(request_text({ path = "/slow" }, "close"))
    sleep(0.02)
    c:close()
end
sleep(0.6)
show(GET("/"), "ratelimit")
say(metrics()['sluice_requests_total{verdict="pass"}'])
--- response_body_like chomp
^200 pass "r";r=94;t=\d+
6
$
--- no_error_log
[error]



=== if, a named location, an error page of a refusal: still one charge
--- toml
[response]
body = "nginx"
[[rules]]
name = "r"
rate = "1/d"
capacity = 3
--- config
    error_page 429 /busy;
    location = /busy { content_by_lua_block { ngx.print("busy page\n") } }
    location = /if {
        if ($arg_x) { rewrite ^ /target last; }
        content_by_lua_block { ngx.print("if\n") }
    }
    location = /target { content_by_lua_block { ngx.print("target\n") } }
--- driver
show(GET("/if"))
show(GET("/if?x=1"))
show(GET("/busy"), "ratelimit")
local answer = GET("/if")
say(answer.status, answer.body)
local m = metrics()
say(m['sluice_requests_total{verdict="pass"}'],
    m['sluice_requests_total{verdict="limited"}'])
--- response_body_like chomp
^200 pass
200 pass
200 pass "r";r=0;t=\d+
429 busy page

3 1
$
--- no_error_log
[error]



=== HTTP/1.0, and a bad request that never reaches us
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- raw_request eval
"GET / HTTP/1.0\r\n\r\n"
--- error_code: 200
--- response_headers
X-Verdict: pass
--- no_error_log
[error]



=== satisfy any: a hook inherited beside one that declined declines too
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- hooks: none
--- config
    access_by_lua_block { require("resty.sluice").access() }
    log_by_lua_block { require("resty.sluice").log() }
    location /shut {
        satisfy any;
        deny all;
        rewrite_by_lua_block {
            require("resty.sluice").access { decline = true }
        }
        content_by_lua_block { ngx.print("in\n") }
    }
--- driver
say(GET("/shut").status)
--- response_body
403



=== satisfy any: the same where nothing is decided
--- redis
HSET sluice:config mode off
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
sync = "100ms"
--- hooks: none
--- config
    access_by_lua_block { require("resty.sluice").access() }
    log_by_lua_block { require("resty.sluice").log() }
    location /shut {
        satisfy any;
        deny all;
        rewrite_by_lua_block {
            require("resty.sluice").access { decline = true }
        }
        content_by_lua_block { ngx.print("in\n") }
    }
--- driver
say(within(3, function() return status().mode == "off" end))
say(GET("/shut").status)
--- response_body
true
403



=== access() in a phase that decides nothing says so
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
--- hooks: none
--- config
    location /late {
        content_by_lua_block {
            local ok, err = require("resty.sluice").access()
            ngx.print(tostring(ok), " ", err, "\n")
        }
    }
--- driver
say(GET("/late").body)
--- response_body_like: ^nil sluice: access\(\) decides in the rewrite and access phases only, not in content
--- error_log
access() decides in the rewrite and access phases only
