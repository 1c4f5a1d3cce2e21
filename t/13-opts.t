# The options of access(): what is wrong in them is said once a second,
# ignored, and the request is decided without it.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== rules: names instead of matching
--- toml
[[rules]]
name = "named"
match = { path = [] }
rate = "1/d"
capacity = 2
[[rules]]
name = "other"
match = { path = [] }
rate = "1/d"
capacity = 1
[[rules]]
name = "matching"
rate = "1/d"
capacity = 50
--- hooks: none
--- config
    location = /named {
        access_by_lua_block {
            require("resty.sluice").access { rules = { "named" } }
        }
        content_by_lua_block { ngx.print("ok") }
    }
    location = /both {
        access_by_lua_block {
            require("resty.sluice").access { rules = { "named", "other" } }
        }
        content_by_lua_block { ngx.print("ok") }
    }
    location = /none {
        access_by_lua_block {
            require("resty.sluice").access { rules = {} }
        }
        content_by_lua_block { ngx.print("ok") }
    }
    location / {
        access_by_lua_block { require("resty.sluice").access() }
        content_by_lua_block { ngx.print("ok") }
    }
--- driver
many(3, function() return GET("/named") end)
many(2, function() return GET("/both", "198.51.100.2") end)
show(GET("/both", "198.51.100.2"))
many(2, function() return GET("/none", "198.51.100.3") end)
show(GET("/", "198.51.100.4"), "ratelimit-policy")
--- response_body
2 x 200 pass, 1 x 429 limited
1 x 200 pass, 1 x 429 limited
429 limited other
2 x 200 pass
200 pass "matching";q=50;w=4320000
--- no_error_log
[error]



=== what is wrong is ignored, and said once a second
--- toml
[[rules]]
name = "r"
rate = "10/d"
capacity = 1000
--- hooks: none
--- config
    access_by_lua_block {
        local odd = {
            { rules = { "nope" } },
            { rules = "r" },
            { rules = { 7 } },
            { cost = 0 }, { cost = -1 }, { cost = 1.5 }, { cost = "x" },
            { cost = 0/0 }, { cost = 1/0 }, { cost = {} },
            { raise = 1 }, { raise = 1.5, user = "alice" },
            { raise = "x", user = "alice" },
            { raise = 1e300, user = "alice" },
            { user = 7 }, { user = "" }, { user = {} },
            { pool = "nope" }, { decline = "x" }, { colour = "red" },
            "text", 7, true,
        }
        require("resty.sluice").access(odd[tonumber(ngx.var.arg_i)])
    }
    log_by_lua_block { require("resty.sluice").log() }
--- driver
local counts = {}
for round = 1, 3 do
    for i = 1, 23 do
        local answer = GET("/?i=" .. i)
        local key = answer.status .. " " .. answer.verdict
        counts[key] = (counts[key] or 0) + 1
    end
end
for key, n in pairs(counts) do
    say(n, key)
end
local errors = 0
for line in io.lines("$TEST_NGINX_SERVROOT/logs/error.log") do
    if line:find("[error]", 1, true) then
        errors = errors + 1
    end
end
-- 69 wrong calls in well under 3 s.
say(errors >= 1, errors <= 24)
--- response_body
69 200 pass
true true



=== an unknown rule: the option is ignored, what matches holds
--- toml
[[rules]]
name = "named"
match = { path = [] }
rate = "1/d"
capacity = 1
[[rules]]
name = "matching"
rate = "1/d"
capacity = 2
--- hooks: none
--- config
    access_by_lua_block {
        require("resty.sluice").access { rules = { "nope", "named" } }
    }
--- driver
many(3, function() return GET("/") end)
show(GET("/"))
--- response_body
2 x 200 pass, 1 x 429 limited
429 limited matching
--- error_log
nope



=== a user without a raise, a raise with a user
--- toml
--- hooks: none
--- config
    access_by_lua_block {
        require("resty.sluice").access {
            user = ngx.var.arg_user, raise = tonumber(ngx.var.arg_raise),
        }
    }
--- driver
say(GET("/?user=a&raise=2").level, GET("/?user=a").level, GET("/").level)
--- response_body
1 3 3
--- no_error_log
[error]



=== an option that there is none of is named
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 5
--- hooks: none
--- config
    location = / {
        access_by_lua_block {
            require("resty.sluice").access { usr = "alice" }
        }
        content_by_lua_block { ngx.print("ok") }
    }
--- driver
say(GET("/").status)
--- response_body
200
--- error_log
access{ usr } is no option
