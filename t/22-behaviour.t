# What clients and users do moves their requests' level: events, suspicion.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== an event of a verified user lifts its requests, for as long as it says
--- table
priority = {
    rules = {
        { name = "pay", level = 0, match = { path = "/pay" } },
        { name = "page", level = 2, match = { path = "/page" } },
    },
    events = {
        { name = "basket", ["for"] = "4s",
          match = { path = "/cart", method = "POST" },
          unless = { header = { ["X-Kind"] = "bot" } } },
    },
},
--- hooks: none
--- config
    access_by_lua_block {
        require("resty.sluice").access {
            user = ngx.var.http_x_user,
            raise = tonumber(ngx.var.http_x_raise),
        }
    }
--- driver
local function level(path, user, fields)
    fields = fields or {}
    fields["X-User"] = user
    return GET(path, nil, fields).level
end
local function cart(user, fields)
    fields = fields or {}
    fields["X-User"] = user
    return POST("/cart", "", nil, fields)
end
say("before", level("/page", "alice"), level("/other", "alice"))
-- Neither is an event: a look, what is left out, somebody unknown.
GET("/cart", nil, { ["X-User"] = "alice" })
cart("alice", { ["X-Kind"] = "bot" })
cart(nil)
say("no event", level("/page", "alice"), level("/page"))
cart("alice")
say("after", level("/page", "alice"), level("/other", "alice"))
say("others", level("/page", "bob"), level("/page"))
-- With a raise on top; never above 0.
cart("alice")
say("raised", level("/page", "alice", { ["X-Raise"] = "1" }),
    level("/page", "alice", { ["X-Raise"] = "5" }))
say("pay", level("/pay", "alice"), level("/pay"))
-- It lasts from the last event.
cart("alice")
ngx.update_time()
local began = ngx.now()
sleep(2)
local still = level("/page", "alice")
ngx.update_time()
say("still", ngx.now() - began < 3.9 and still or "1")
say("over", within(6, function() return level("/page", "alice") == "2" end))
ngx.update_time()
say(ngx.now() - began > 3.9)
--- timeout: 20
--- response_body
before 2 3
no event 2 2
after 1 2
others 2 2
raised 0 0
pay 0 1
still 1
over true
true
--- no_error_log
[error]



=== nobody has intent without being verified
--- table
priority = {
    rules = { { name = "page", level = 2, match = { path = "/page" } } },
    events = { { name = "cart", match = { path = "/cart" } } },
},
--- driver
GET("/cart")
say(GET("/page").level)
--- response_body
2
--- no_error_log
[error]



=== a client above its rate is lowered, others are not
--- table
priority = {
    rules = { { name = "page", level = 1, match = { path = "/page" } } },
    suspicion = { rate = "4/s", window = "10s" },
},
--- driver
local function levels(n, from)
    local seen, order = {}, {}
    for i = 1, n do
        local level = GET("/page", from and from(i) or "203.0.113.7").level
        if not seen[level] then
            seen[level] = true
            order[#order + 1] = level
        end
    end
    return table.concat(order, " ")
end
local function one(ip)
    return function() return ip end
end
-- 40 in a window are its due.
say(levels(40))
levels(200)
say(levels(1), levels(1, one("203.0.113.8")))
-- A whole /64 is one client.
levels(200, function(i) return ("2001:db8:0:7::%x"):format(i) end)
say(levels(1, one("2001:db8:0:7:ffff::1")), levels(1, one("2001:db8:0:8::1")))
--- timeout: 30
--- response_body
1
2 1
2 1
--- no_error_log
[error]



=== a client whose requests end with 4xx, and one whose do with 5xx
--- table
rules = {
    { name = "few", rate = "1/d", capacity = 2, match = { path = "/limited" } },
},
lists = { blocklist = { "203.0.113.13" } },
priority = {
    rules = { { name = "page", level = 1, match = { path = "/page" } } },
    suspicion = { client_errors = 0.5, window = "30s" },
},
--- config
    location = /missing { content_by_lua_block { ngx.exit(404) } }
    location = /broken { content_by_lua_block { ngx.exit(503) } }
--- driver
local function after(n, path, from)
    for _ = 1, n do
        GET(path, from)
    end
    return GET("/page", from).level
end
-- Nine say nothing yet.
say(after(9, "/missing", "203.0.113.7"))
say(after(2, "/missing", "203.0.113.7"))
say(after(30, "/broken", "203.0.113.8"))
-- Half of them is within the bound.
after(10, "/page", "203.0.113.9")
say(after(10, "/missing", "203.0.113.9"), after(8, "/missing", "203.0.113.9"))
-- What Sluice itself refuses is not the client's error.
say(after(30, "/limited", "203.0.113.10"))
--- timeout: 30
--- response_body
1
2
1
1 2
1



=== a client that leaves before its answers come
--- table
priority = {
    rules = { { name = "page", level = 1, match = { path = "/page" } } },
    suspicion = { aborts = 0.5, window = "30s" },
},
--- config
    lua_check_client_abort on;
    location = /slow {
        content_by_lua_block { ngx.sleep(1) ngx.say("late") }
    }
--- driver
local function leave(n, from)
    for _ = 1, n do
        local c = open()
        c:send("GET /slow HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: "
               .. from .. "\r\n\r\n")
        sleep(0.02)
        c:close()
    end
end
leave(9, "203.0.113.7")
leave(11, "203.0.113.8")
sleep(0.2)
say(GET("/page", "203.0.113.7").level)
say(within(5, function()
    return GET("/page", "203.0.113.8").level == "2"
end))
--- timeout: 20
--- response_body
1
true
--- no_error_log
[error]



=== a user is watched apart from its address, and loses level 0
--- table
priority = {
    rules = { { name = "pay", level = 0, match = { path = "/pay" } } },
    suspicion = { rate = "4/s", window = "10s" },
},
--- hooks: none
--- config
    access_by_lua_block {
        require("resty.sluice").access { user = ngx.var.http_x_user }
    }
--- driver
local function level(user, n)
    local answer
    for _ = 1, n or 1 do
        answer = GET("/pay", "203.0.113.7", { ["X-User"] = user })
    end
    return answer.level
end
say(level("alice"), level("bob"), level(nil))
say(level("alice", 200))
say(level("bob"), level(nil))
--- timeout: 20
--- response_body
0 0 1
1
0 1
--- no_error_log
[error]



=== a flood of addresses changes nothing for a shopper, nor for who is suspected
--- table
shm = { size = "1MiB" },
priority = {
    rules = { { name = "page", level = 1, match = { path = "/page" } } },
    suspicion = { rate = "4/s", window = "10s" },
},
--- driver
for _ = 1, 200 do
    GET("/page", "203.0.113.7")
end
-- The table has room for some 400.
for i = 1, 2000 do
    GET("/page", ("10.0.%d.%d"):format(i / 256, i % 256))
end
say(GET("/page", "203.0.113.7").level, GET("/page", "203.0.113.8").level)
--- timeout: 40
--- response_body
2 1
--- no_error_log
[error]



=== what is known outlives a change of the configuration in Redis
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[priority.suspicion]
rate = "4/s"
window = "10s"
[[priority.rules]]
name = "page"
match = { path = "/page" }
level = 1
--- driver
for _ = 1, 200 do
    GET("/page", "203.0.113.7")
end
say(GET("/page", "203.0.113.7").level)
redis("HSET", "sluice:config", "priority:page",
      '{"order":1,"level":2,"match":{"path":"/page"}}')
say(within(3, function()
    return GET("/page", "203.0.113.8").level == "2"
end))
say(GET("/page", "203.0.113.7").level)
redis("HSET", "sluice:config", "priority:page", '{"enabled":false}')
say(within(3, function()
    return GET("/page", "203.0.113.8").level == "3"
end))
redis("HSET", "sluice:config", "event:basket", '{"match":{"path":"/cart"}}',
      "suspicion", '{"rate":"1/s"}')
say(within(3, function() return #status().config.errors == 2 end))
--- timeout: 30
--- response_body
2
true
3
true
true
