# ban() and unban(), of the local store and of Redis.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== a ban of this gateway, for a time, for ever, and its end
--- toml
[[rules]]
name = "r"
rate = "10/d"
capacity = 1000
--- driver
local function on(address)
    return GET("/", address).status
end
say(sluice.ban("203.0.113.1", 2))
say(sluice.ban("203.0.113.2"))
say(sluice.ban("198.51.100.0/24", 3600))
say(sluice.ban("2001:db8:5::/48", 3600))
say(on("203.0.113.1"), on("203.0.113.2"), on("198.51.100.200"),
    on("2001:db8:5:6::7"), on("203.0.113.3"), on("::ffff:203.0.113.2"))
say(status().bans.entries)
sleep(3.2)
say(on("203.0.113.1"), on("203.0.113.2"))
say(sluice.unban("203.0.113.2"))
say(sluice.unban("198.51.100.0/24"))
say(on("203.0.113.2"), on("198.51.100.200"), on("2001:db8:5:6::7"))
--- timeout: 20
--- response_body_like chomp
^true ?(?:nil)?
true ?(?:nil)?
true ?(?:nil)?
true ?(?:nil)?
403 403 403 403 200 403
4
200 403
true ?(?:nil)?
true ?(?:nil)?
200 200 403
$
--- no_error_log
[error]



=== a ban of everybody is made, with a line in the log
--- toml
--- driver
say(sluice.ban("0.0.0.0/0", 1), sluice.ban("::/0", 1))
say(GET("/", "203.0.113.1").status)
sleep(0.2)
local found = {}
for line in io.lines("$TEST_NGINX_SERVROOT/logs/error.log") do
    local what = line:match("ban%(%): (%S+) is every address of its family")
    if what and line:find("[warn]", 1, true) then
        found[#found + 1] = what
    end
end
say(table.concat(found, " "))
--- response_body
true true
403
0.0.0.0/0 ::/0



=== B65 how long
--- toml
--- driver
local function ok(seconds)
    local good, err = sluice.ban("203.0.113.1", seconds)
    sluice.unban("203.0.113.1")
    return good and "yes" or (good == nil and type(err) == "string" and "no")
end
say("1", ok(1))
say("0.5", ok(0.5))
say("315360000", ok(315360000))
say("2147484", ok(2147484))
say("4294968", ok(4294968))
say("0", ok(0))
say("-1", ok(-1))
say("1e9", ok(1000000000))
say("2^63", ok(9223372036854775807))
say("nan", ok(0/0))
say("inf", ok(1/0))
say(select(2, sluice.ban("203.0.113.1", -5)))
say("text", ok("soon"))
say("table", ok({}))
for _, seconds in ipairs { 2147484, 4294968, 315360000 } do
    sluice.ban("203.0.113.7", seconds)
    many(3, function() return GET("/", "203.0.113.7") end)
end
--- response_body
1 yes
0.5 yes
315360000 yes
2147484 yes
4294968 yes
0 no
-1 no
1e9 no
2^63 no
nan no
inf no
sluice: ban(): seconds must be above 0 and at most ten years, or nil for ever, not -5
text no
table no
3 x 403 blocked
3 x 403 blocked
3 x 403 blocked
--- no_error_log
[error]



=== whom
--- toml
--- driver
for _, subject in ipairs { "203.0.113.1", " 203.0.113.1 ", "10.0.0.0/8",
                           "10.1.2.3/8", "2001:db8::/32", "user:alice",
                           "rubbish", "", "10.0.0.0/33", "user:", "1.2.3",
                           "203.0.113.1:80" } do
    local ok, err = sluice.ban(subject, 10)
    say(subject, ok and "yes" or type(err) == "string" and "no")
end
say(select(2, pcall(sluice.ban)) == nil)
say(type(select(2, sluice.ban(nil, 10))), type(select(2, sluice.ban(7, 10))))
say(GET("/", "8.8.8.8").status)
--- response_body
203.0.113.1 yes
 203.0.113.1  yes
10.0.0.0/8 yes
10.1.2.3/8 yes
2001:db8::/32 yes
user:alice yes
rubbish no
 no
10.0.0.0/33 no
user: no
1.2.3 no
203.0.113.1:80 no
true
string string
200
--- no_error_log
[error]



=== B62 an allow entry beats a ban, whichever came first
--- toml
[lists]
allowlist = ["10.1.1.1"]
--- driver
say(GET("/", "10.1.1.1").status)
sluice.ban("10.0.0.0/8")
sluice.ban("10.1.1.1")
say(GET("/", "10.1.1.1").status, GET("/", "10.1.1.2").status)
--- response_body
200
200 403
--- no_error_log
[error]



=== unban removes from the bans only
--- toml
[lists]
blocklist = ["203.0.113.1"]
--- driver
sluice.ban("203.0.113.1")
say(sluice.unban("203.0.113.1"))
say(GET("/", "203.0.113.1").status)
-- Nothing there: not an error.
say(sluice.unban("203.0.113.200"))
--- response_body_like chomp
^true ?(?:nil)?
403
true ?(?:nil)?
$
--- no_error_log
[error]



=== from every phase in which a caller may wait, and from a timer
--- toml
--- hooks: none
--- config
    location = /rewrite {
        rewrite_by_lua_block {
            ngx.say(require("resty.sluice").ban("203.0.113.1", 60))
            ngx.exit(200)
        }
    }
    location = /access {
        access_by_lua_block {
            ngx.say(require("resty.sluice").ban("203.0.113.2", 60))
            ngx.exit(200)
        }
    }
    location = /content {
        content_by_lua_block {
            ngx.say(require("resty.sluice").ban("203.0.113.3", 60))
        }
    }
    location = /timer {
        content_by_lua_block {
            ngx.timer.at(0, function()
                require("resty.sluice").ban("203.0.113.4", 60)
            end)
            ngx.sleep(0.05)
            ngx.say("true")
        }
    }
    location / {
        access_by_lua_block { require("resty.sluice").access() }
        content_by_lua_block { ngx.say("ok") }
    }
--- driver
for _, path in ipairs { "/rewrite", "/access", "/content", "/timer" } do
    say((GET(path).body:match("^%w+")))
end
for i = 1, 4 do
    say(GET("/", "203.0.113." .. i).status)
end
--- response_body
true
true
true
true
403
403
403
403
--- no_error_log
[error]



=== bans of Redis: a key of their own, with an end
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "r"
rate = "10/d"
capacity = 1000
--- driver
say((sluice.ban("203.0.113.1", 3600)))
say((sluice.ban("203.0.113.2")))
say((sluice.ban("user:mallory", 3600)))
say(within(3, function()
    return GET("/", "203.0.113.1").status == 403
        and GET("/", "203.0.113.2").status == 403
end))
say(GET("/", "203.0.113.3").status)
ngx.update_time()
local left = tonumber(redis("ZSCORE", "sluice:bans", "203.0.113.1")) - ngx.time()
say(left > 3590 and left <= 3602)
say(redis("ZSCORE", "sluice:bans", "203.0.113.2"))
say(redis("TYPE", "sluice:blocklist"), redis("ZCARD", "sluice:bans"))
say((sluice.unban("203.0.113.1")))
say(within(6, function() return GET("/", "203.0.113.1").status == 200 end))
say(GET("/", "203.0.113.2").status)
say(redis("ZSCORE", "sluice:bans", "203.0.113.1"))
-- Written by somebody else.
redis("ZADD", "sluice:bans", "+inf", "203.0.113.77")
say(within(3, function() return GET("/", "203.0.113.77").status == 403 end))
--- timeout: 20
--- response_body
true
true
true
true
200
true
inf
none 3
true
true
403
nil
true
--- no_error_log
[error]



=== a ban while Redis is away is an error, not a crash
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:1/0"
--- driver
local ok, err = sluice.ban("203.0.113.1", 60)
say(ok, type(err))
say(GET("/").status)
--- response_body
nil string
200
