# B101: a refusal before the body has been read must not leave it on the wire.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== a refused POST, then a GET on the same connection, twenty times
--- toml
[[rules]]
name = "post"
match = { path = "/form", method = ["POST"] }
rate = "1/d"
capacity = 1
--- driver
POST("/form", "x")
local bodies = {
    small = "0123456789",
    request = "GET /evil HTTP/1.1\r\nHost: x\r\n\r\n",
    large = ("x"):rep(100000),
    huge = ("y"):rep(3000000),
}
for _, kind in ipairs { "small", "request", "large", "huge" } do
    local right, closed, wrong = 0, 0, 0
    for i = 1, 20 do
        local c = open()
        c:send(request_text({ method = "POST", path = "/form",
                              body = bodies[kind] }, "keep-alive"))
        local refused = c:answer()
        if not refused or refused.status ~= 429 then
            wrong = wrong + 1
        elseif refused.headers.connection == "close" then
            closed = closed + 1
        else
            c:send(request_text({ path = "/after?n=" .. i }, "keep-alive"))
            local answer = c:answer()
            if answer and answer.status == 200 and answer.body == "ok\n" then
                right = right + 1
            else
                wrong = wrong + 1
            end
        end
        c:close()
    end
    say(kind, right + closed, wrong)
end
--- timeout: 30
--- response_body
small 20 0
request 20 0
large 20 0
huge 20 0
--- no_error_log
[error]



=== chunked
--- toml
[[rules]]
name = "post"
match = { path = "/form", method = ["POST"] }
rate = "1/d"
capacity = 1
--- driver
POST("/form", "x")
local good = 0
for i = 1, 20 do
    local c = open()
    c:send("POST /form HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.1"
        .. "\r\nTransfer-Encoding: chunked\r\n\r\n"
        .. "5\r\nhello\r\n" .. "1f4\r\n" .. ("z"):rep(500) .. "\r\n0\r\n\r\n")
    local refused = c:answer()
    if refused and refused.status == 429 then
        if refused.headers.connection == "close" then
            good = good + 1
        else
            c:send(request_text({ path = "/after" }, "keep-alive"))
            local answer = c:answer()
            if answer and answer.status == 200 then
                good = good + 1
            end
        end
    end
    c:close()
end
say(good)
--- response_body
20
--- no_error_log
[error]



=== Expect: 100-continue, the body never sent
--- toml
[[rules]]
name = "post"
match = { path = "/form", method = ["POST"] }
rate = "1/d"
capacity = 1
--- driver
POST("/form", "x")
local good = 0
for i = 1, 20 do
    local c = open()
    c:send("POST /form HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.1"
        .. "\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n")
    local refused = c:answer()
    if refused and refused.status == 429 then
        -- The server said close, or waits for the body that it may still get.
        if refused.headers.connection ~= "close" then
            c:send("0123456789" .. request_text({ path = "/after" }, "close"))
            local answer = c:answer()
            if answer and answer.status == 200 then
                good = good + 1
            end
        else
            good = good + 1
        end
    end
    c:close()
end
say(good)
--- response_body
20
--- no_error_log
[error]



=== blocked clients, and the rewrite phase
--- toml
[lists]
blocklist = ["198.51.100.1"]
--- hooks: none
--- config
    rewrite_by_lua_block { require("resty.sluice").access() }
    log_by_lua_block { require("resty.sluice").log() }
--- driver
for _, size in ipairs { 10, 100000 } do
    local good = 0
    for i = 1, 20 do
        local c = open()
        c:send(request_text({ method = "POST", path = "/form",
                              body = ("b"):rep(size) }, "keep-alive"))
        local refused = c:answer()
        if refused and refused.status == 403 then
            if refused.headers.connection == "close" then
                good = good + 1
            else
                c:send(request_text({ path = "/", from = "198.51.100.2" },
                                    "keep-alive"))
                local answer = c:answer()
                if answer and answer.status == 200 then
                    good = good + 1
                end
            end
        end
        c:close()
    end
    say(size, good)
end
--- timeout: 20
--- response_body
10 20
100000 20
--- no_error_log
[error]



=== an admitted body reaches the backend whole
--- toml
[[rules]]
name = "post"
match = { method = ["POST"] }
rate = "1/d"
capacity = 100
--- config
    location / {
        content_by_lua_block {
            ngx.req.read_body()
            local data = ngx.req.get_body_data()
            if not data then
                local f = io.open(ngx.req.get_body_file())
                data = f:read("*a")
                f:close()
            end
            ngx.print(#data)
        }
    }
--- driver
for _, size in ipairs { 1, 10000, 500000 } do
    say(POST("/", ("b"):rep(size)).body)
end
--- response_body
1
10000
500000
--- no_error_log
[error]
