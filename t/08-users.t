# Users that the caller has verified: access { user = …, raise = … }.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== a user has a bucket of his own, an anonymous client his address's
--- toml
[[rules]]
name = "r"
key = ["user"]
rate = "1/d"
capacity = 2
--- hooks: none
--- config
    access_by_lua_block {
        require("resty.sluice").access { user = ngx.var.http_x_user }
    }
    log_by_lua_block { require("resty.sluice").log() }
--- driver
local function as(user, from)
    return GET("/", from, user and { ["X-User"] = user })
end
many(3, function(i) return as("alice", "198.51.100." .. i) end)
many(3, function() return as("bob") end)
many(3, function() return as(nil) end)
-- B39: a user that looks like the address is not the address.
many(3, function() return as("198.51.100.1", "198.51.100.1") end)
many(3, function() return as("198.51.100.55", "198.51.100.9") end)
many(3, function() return as(nil, "198.51.100.55") end)
--- response_body
2 x 200 pass, 1 x 429 limited
2 x 200 pass, 1 x 429 limited
2 x 200 pass, 1 x 429 limited
2 x 200 pass, 1 x 429 limited
2 x 200 pass, 1 x 429 limited
2 x 200 pass, 1 x 429 limited
--- no_error_log
[error]



=== user entries of the lists, and their place in the order
--- toml
[lists]
blocklist = ["user:mallory", "203.0.113.9", "user:both"]
allowlist = ["user:vip", "10.0.0.0/8", "user:both"]
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
--- hooks: none
--- config
    access_by_lua_block {
        require("resty.sluice").access { user = ngx.var.http_x_user }
    }
--- driver
local function as(user, from)
    return GET("/", from, user and { ["X-User"] = user })
end
show(as("mallory", "198.51.100.1"))
-- An allowed address comes before everything.
show(as("mallory", "10.0.0.1"))
-- An allowed user before a blocked address.
show(as("vip", "203.0.113.9"))
many(3, function() return as("vip", "198.51.100.2") end)
show(as("both", "198.51.100.3"))
show(as("alice", "203.0.113.9"))
-- Nobody without an identity is `user:mallory`.
show(as(nil, "198.51.100.4"))
-- B39: a user called like a blocked address is not it.
show(as("203.0.113.9", "198.51.100.5"))
-- Users are told apart by every byte.
show(as("Mallory", "198.51.100.6"))
--- response_body
403 blocked
200 pass
200 pass
3 x 200 pass
200 pass
403 blocked
200 pass
200 pass
200 pass
--- no_error_log
[error]



=== bans of users
--- toml
--- hooks: none
--- config
    access_by_lua_block {
        require("resty.sluice").access { user = ngx.var.http_x_user }
    }
--- driver
local function as(user)
    return GET("/", nil, user and { ["X-User"] = user }).status
end
sluice.ban("user:203.0.113.9", 60)
sluice.ban("user:mallory", 60)
say(as("mallory"), as("alice"), as(nil), as("203.0.113.9"))
say(GET("/", "203.0.113.9").status)
sluice.unban("user:mallory")
say(as("mallory"))
--- response_body
403 200 200 403
200
200
--- no_error_log
[error]



=== users of Redis's lists
--- redis
SADD sluice:blocklist user:mallory "user:with blank"
SADD sluice:allowlist user:vip
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
key = ["user"]
--- hooks: none
--- config
    access_by_lua_block {
        require("resty.sluice").access { user = ngx.var.http_x_user }
    }
--- driver
local function as(user)
    return GET("/", nil, user and { ["X-User"] = user })
end
say(within(3, function() return as("mallory").status == 403 end))
show(as("with blank"))
many(5, function() return as("vip") end)
many(3, function() return as("alice") end)
--- response_body
true
403 blocked
5 x 200 pass
2 x 200 pass, 1 x 429 limited
--- no_error_log
[error]



=== a client cannot claim to be a user
--- toml
[[rules]]
name = "r"
key = ["user"]
rate = "1/d"
capacity = 3
--- driver
-- B44, B49: whatever is sent, it is the address's bucket.
many(8, function(i)
    return GET("/", nil, { Authorization = "Bearer " .. i,
                           Cookie = "user=u" .. i, ["X-User"] = "u" .. i })
end)
--- response_body
3 x 200 pass, 5 x 429 limited
--- no_error_log
[error]



=== odd identities
--- toml
[[rules]]
name = "r"
key = ["user"]
rate = "1/d"
capacity = 2
--- hooks: none
--- config
    access_by_lua_block {
        local odd = {
            long = ("u"):rep(300), empty = "", nul = "a\0b", utf8 = "ü",
            bytes = "\255\254", number = 7, yes = true, list = { "a" },
            newline = "a\nb",
        }
        require("resty.sluice").access { user = odd[ngx.var.arg_k] }
    }
--- driver
local n = 1
for _, kind in ipairs { "long", "empty", "nul", "utf8", "bytes", "number",
                        "yes", "list", "newline" } do
    -- Taken or not, nobody gets a bucket a request out of it.
    local counts = {}
    for i = 1, 3 do
        counts[i] = GET("/?k=" .. kind, "198.51.100." .. n).status
    end
    n = n + 1
    say(kind, unpack(counts))
end
--- response_body
long 200 200 429
empty 200 200 429
nul 200 200 429
utf8 200 200 429
bytes 200 200 429
number 200 200 429
yes 200 200 429
list 200 200 429
newline 200 200 429
--- error_code: 200
