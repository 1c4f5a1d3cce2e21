# The level of a request: rule, raise, user.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== level of the first matching priority rule, the default otherwise
--- table
priority = { rules = {
    { name = "pay", level = 0, match = { path = "/pay/*" } },
    { name = "cart", level = 1, match = { path = "/cart/*" } },
    { name = "also", level = 3, match = { path = "/cart/x" } },
    { name = "search", level = 2, match = { path = "/search" }, unless = { method = "POST" } },
} },
--- hooks: none
--- config
    access_by_lua_block {
        require("resty.sluice").access {
            user = ngx.var.http_x_user,
            raise = tonumber(ngx.var.http_x_raise),
        }
    }
--- driver
local function level(path, user, raise, method)
    return send { path = path, method = method,
                  headers = { ["X-User"] = user, ["X-Raise"] = raise } }.level
end
say(level("/pay/1"), level("/pay/1", "alice"))
say(level("/cart/x"), level("/search"), level("/search", nil, nil, "POST"))
say(level("/other"), level("/other", "alice"))
-- A raise lifts, clamped at 0; without a user it does nothing.
say(level("/other", "alice", 1), level("/other", "alice", 2),
    level("/other", "alice", 3), level("/other", "alice", 99))
say(level("/other", nil, 2))
say(level("/cart/x", "alice", 1))
-- Negative: a lowering, clamped at the lowest.
say(level("/cart/x", "alice", -1), level("/cart/x", "alice", -9))
--- response_body
1 0
1 2 3
3 3
2 1 0 0
3
0
2 3
--- error_code: 200



=== other numbers of levels
--- table
priority = { levels = 2, default = 0, rules = {
    { name = "low", level = 1, match = { path = "/low" } },
} },
--- driver
say(GET("/").level, GET("/low").level)
--- response_body
1 1
--- no_error_log
[error]



=== eight levels
--- table
priority = { levels = 8, default = 5, rules = {
    { name = "low", level = 7, match = { path = "/low" } },
} },
--- driver
say(GET("/").level, GET("/low").level)
--- response_body
5 7
--- no_error_log
[error]



=== the level goes to the backend, a client's own never does
--- table
priority = { forward = true, rules = {
    { name = "cart", level = 1, match = { path = "/cart" } },
} },
--- http_config
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        location / {
            content_by_lua_block {
                local level = ngx.req.get_headers()["X-Sluice-Level"]
                if type(level) == "table" then
                    level = table.concat(level, "+")
                end
                ngx.print(ngx.var.request_uri, " ", level or "none")
            }
        }
    }
--- config
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
    }
--- driver
say(GET("/cart").body)
say(GET("/other").body)
say(GET("/other", nil, { ["X-Sluice-Level"] = "0" }).body)
say(GET("/cart", nil, { ["x-sluice-level"] = "0" }).body)
say(send { path = "/cart", lines = { "X-Sluice-Level: 0", "X-Sluice-Level: 0" } }.body)
--- response_body
/cart 1
/other 3
/other 3
/cart 1
/cart 1
--- no_error_log
[error]



=== not forwarded unless asked for
--- table
priority = { rules = {
    { name = "cart", level = 1, match = { path = "/cart" } },
} },
--- http_config
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        location / {
            content_by_lua_block {
                ngx.print(ngx.var.http_x_sluice_level or "none")
            }
        }
    }
--- config
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
    }
--- driver
say(GET("/cart").body)
--- response_body
none
--- no_error_log
[error]
