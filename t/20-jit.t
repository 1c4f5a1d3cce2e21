# The hot paths are compiled, and nothing in them stops the compiler.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== our Lua runs compiled: a trace is seen, an NYI is not
--- toml
[[rules]]
name = "r"
rate = "1000000/s"
capacity = 1000000
--- before_start
local verbose = require("jit.v")
verbose.on("$TMP/jit.txt")
--- hooks: none
--- config
    location = /loop {
        content_by_lua_block {
            -- The same request, asked again and again, as a hot handler is.
            local sluice = require("resty.sluice")
            for i = 1, 400 do
                sluice.access()
            end
            ngx.print("done")
        }
    }
    location = /opts {
        access_by_lua_block {
            require("resty.sluice").access { user = "alice", raise = 1,
                                             cost = 1 }
        }
        log_by_lua_block { require("resty.sluice").log() }
        content_by_lua_block { ngx.print("ok") }
    }
    location / {
        access_by_lua_block { require("resty.sluice").access() }
        log_by_lua_block { require("resty.sluice").log() }
        content_by_lua_block { ngx.print("ok") }
    }
--- driver
many(300, function() return GET("/") end)
many(300, function() return GET("/opts") end)
say(GET("/loop").body)
require("jit.v").off()
local traces, nyi = 0, {}
for line in io.lines("$TMP/jit.txt") do
    if line:find("sluice", 1, true) then
        if line:find("-- NYI", 1, true) then
            nyi[#nyi + 1] = line
        elseif line:find("%[TRACE%s+%d+ ") then
            traces = traces + 1
        end
    end
end
-- access() and log() at least.
say(traces >= 2)
say(#nyi)
for i = 1, math.min(3, #nyi) do
    say(nyi[i])
end
--- timeout: 20
--- response_body
300 x 200 pass
300 x 200 pass
done
true
0



=== with a pool too: a slot taken and given back stays compiled
--- backend
--- hooks: user
--- toml
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 50
release = "headers"
--- before_start
local verbose = require("jit.v")
verbose.on("$TMP/jit-pools.txt")
--- config
    header_filter_by_lua_block { require("resty.sluice").header() }
--- driver
many(400, function(i) return send { path = "/b/x", user = "u" .. i % 9 } end)
require("jit.v").off()
local traces, nyi = 0, {}
for line in io.lines("$TMP/jit-pools.txt") do
    if line:find("sluice", 1, true) then
        if line:find("-- NYI", 1, true) then
            nyi[#nyi + 1] = line
        elseif line:find("%[TRACE%s+%d+ ") then
            traces = traces + 1
        end
    end
end
-- access(), header() and log() at least.
say(traces >= 3)
say(#nyi)
for i = 1, math.min(3, #nyi) do
    say(nyi[i])
end
--- timeout: 20
--- response_body
400 x 200 pass
true
0



=== no Lua function is handed to C (B99), and nothing casts one
--- config
    location = /grep {
        content_by_lua_block {
            local files = io.popen("find " .. "$TEST_NGINX_SLUICE_LUA"
                .. " -name '*.lua'")
            local n, odd = 0, 0
            for path in files:lines() do
                n = n + 1
                for line in io.lines(path) do
                    if line:find("ffi%.cast%s*%(%s*[\"'][^\"']*%(%s*%*")
                        or line:find("%(%*%)%s*%(")
                    then
                        odd = odd + 1
                        ngx.say(path, ": ", line)
                    end
                end
            end
            ngx.say(n > 0, " ", odd)
        }
    }
--- request
GET /grep
--- response_body
true 0
--- no_error_log
[error]



=== nothing global is made
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
--- driver
GET("/")
GET("/")
sluice.check("r", "k")
sluice.ban("203.0.113.1", 1)
metrics()
status()
say("ok")
--- response_body
ok
--- no_error_log
writing a global
[error]
