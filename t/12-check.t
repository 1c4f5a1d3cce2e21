# check(rule, key, cost): one named rule for a key of the caller's.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== admitted with what is left, refused with the wait
--- toml
[[rules]]
name = "sms"
match = { path = [] }
rate = "2/m"
capacity = 2
--- driver
say(sluice.check("sms", "+49123"))
say(sluice.check("sms", "+49123"))
local ok, wait = sluice.check("sms", "+49123")
say(ok, wait > 29 and wait <= 30)
say(sluice.check("sms", "+49124"))
--- response_body
true 1
true 0
false true
true 1
--- no_error_log
[error]



=== costs
--- toml
[[rules]]
name = "bytes"
match = { path = [] }
rate = "1/d"
capacity = 10
--- driver
say(sluice.check("bytes", "a", 4))
say(sluice.check("bytes", "a", 6))
say((sluice.check("bytes", "a", 1)))
for _, cost in ipairs { 0, -1, 1.5, 0/0, 1/0, "x", {} } do
    local ok, err = sluice.check("bytes", "b", cost)
    if ok ~= nil or type(err) ~= "string" then
        say("taken", tostring(cost), ok, err)
    end
end
say(sluice.check("bytes", "b"))
--- response_body
true 6
true 0
false
true 9
--- no_error_log
[error]



=== errors are nil and a sentence
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
--- driver
for _, call in ipairs {
    function() return sluice.check("nope", "k") end,
    function() return sluice.check("", "k") end,
    function() return sluice.check(nil, "k") end,
    function() return sluice.check({}, "k") end,
    function() return sluice.check("r", {}) end,
    function() return sluice.check(("r"):rep(100), "k") end,
} do
    local ok, first, second = pcall(call)
    say(ok, first, type(second))
end
--- response_body
true nil string
true nil string
true nil string
true nil string
true nil string
true nil string



=== keys of any bytes, apart from those of requests
--- toml
[[rules]]
name = "r"
key = ["header:X-Id"]
rate = "1/d"
capacity = 1
--- driver
for _, key in ipairs { "", "\0", "a\0b", "a\0c", "\255", ("k"):rep(8000),
                       ("k"):rep(7999) .. "j" } do
    local first, second = sluice.check("r", key), sluice.check("r", key)
    if first ~= true or second ~= false then
        say(#key, first, second)
    end
end
-- Too long is an error, never cut.
say(type(select(2, sluice.check("r", ("k"):rep(1000000)))))
say((sluice.check("r", "id")))
say(GET("/", nil, { ["X-Id"] = "other" }).status)
--- response_body
string
true
200
--- no_error_log
[error]



=== always true in shadow mode
--- toml
[[rules]]
name = "r"
mode = "shadow"
rate = "1/d"
capacity = 1
--- driver
for i = 1, 3 do
    say((sluice.check("r", "k")))
end
--- response_body
true
true
true
--- no_error_log
[error]



=== in the rewrite, access and content phases and in a timer
--- toml
[[rules]]
name = "r"
match = { path = [] }
rate = "1/d"
capacity = 3
--- hooks: none
--- config
    location = /t {
        rewrite_by_lua_block {
            ngx.ctx.said = tostring((require("resty.sluice").check("r", "k")))
        }
        access_by_lua_block {
            ngx.ctx.said = ngx.ctx.said .. " "
                .. tostring((require("resty.sluice").check("r", "k")))
        }
        content_by_lua_block {
            local said
            ngx.timer.at(0, function()
                said = tostring((require("resty.sluice").check("r", "k")))
            end)
            ngx.sleep(0.1)
            ngx.say(ngx.ctx.said, " ", said, " ",
                (require("resty.sluice").check("r", "k")))
        }
    }
--- request
GET /t
--- response_body
true true true false
--- no_error_log
[error]



=== the same through Redis
--- redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "sms"
match = { path = [] }
rate = "2/m"
capacity = 2
--- driver
say(sluice.check("sms", "+49123"))
say(sluice.check("sms", "+49123"))
local ok, wait = sluice.check("sms", "+49123")
say(ok, wait > 29 and wait <= 30)
say(sluice.check("sms", "b", 2))
local said
ngx.timer.at(0, function() said = sluice.check("sms", "timer") end)
sleep(0.2)
say(said)
say(#redis("KEYS", "sluice:b:sms:*"))
--- response_body
true 1
true 0
false true
true 0
true
3
--- no_error_log
[error]
