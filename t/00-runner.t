# The block format itself, without our library: what the other suites lean on
# holds under the runner that runs them, whichever it is.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== one request, fields and body
--- bare
--- config
    location /t {
        content_by_lua_block {
            ngx.header["X-Method"] = ngx.req.get_method()
            ngx.header["X-Twice"] = { "a", "b" }
            ngx.say("host ", ngx.var.host, ", me ", ngx.var.http_x_me)
        }
    }
--- request
GET /t
--- more_headers
X-Me: 203.0.113.9
--- response_headers
X-Method: GET
X-Twice: a, b
! X-Absent
--- raw_response_headers_unlike: X-Absent
--- response_body
host localhost, me 203.0.113.9
--- no_error_log
[error]



=== a body, chunked answers, a status
--- bare
--- config
    location /t {
        content_by_lua_block {
            ngx.req.read_body()
            ngx.status = 418
            ngx.print("got ")
            ngx.flush(true)
            ngx.print(ngx.req.get_body_data())
        }
    }
--- request
POST /t
a=1&b=2
--- error_code: 418
--- response_body: got a=1&b=2
--- no_error_log
[error]



=== many requests
--- bare
--- config
    location /a { content_by_lua_block { ngx.print("a") } }
    location /b { content_by_lua_block { ngx.exit(403) } }
--- request eval
["GET /a", "HEAD /a", "GET /b"]
--- more_headers eval
["X-One: 1", "X-Two: 2", "X-Three: 3"]
--- error_code eval
[200, 200, 403]
--- response_body_like eval
["^a\$", "^\$", "403 Forbidden"]
--- no_error_log
[error]



=== pipelined on one connection
--- bare
--- config
    location /t {
        content_by_lua_block { ngx.say(ngx.var.connection_requests) }
    }
--- pipelined_requests eval
["GET /t", "GET /t", "GET /t"]
--- response_body eval
["1\n", "2\n", "3\n"]
--- no_error_log
[error]



=== packets with a pause
--- bare
--- config
    location /t {
        content_by_lua_block {
            ngx.req.read_body()
            ngx.update_time()
            local took = ngx.now() - ngx.req.start_time()
            ngx.say(ngx.req.get_body_data(), " ", took > 0.15)
        }
    }
--- request eval
[["POST /t\nab", { value => "cd", delay_before => 0.2 }]]
--- response_body
abcd true
--- no_error_log
[error]



=== a raw request
--- bare
--- config
    location /t { content_by_lua_block { ngx.print(ngx.var.http_x_a) } }
--- raw_request eval
"GET /t HTTP/1.0\r\nX-A: odd\ttext\r\n\r\n"
--- response_body eval: "odd\ttext"
--- no_error_log
[error]



=== the error log is read
--- bare
--- config
    location /t {
        content_by_lua_block {
            ngx.log(ngx.WARN, "one ", 1)
            ngx.log(ngx.WARN, "one ", 2)
            ngx.say("ok")
        }
    }
--- request
GET /t
--- response_body
ok
--- grep_error_log eval: qr/one \d/
--- grep_error_log_out
one 1
one 2
--- error_log eval
[qr/\[warn\].*one 1/]
--- no_error_log
[error]
one 3



=== files of the case
--- bare
--- config
    location /f { root $TEST_NGINX_SERVER_ROOT/html; }
--- user_files
>>> f/x.txt
first
>>> f/y.txt
second
--- request eval
["GET /f/x.txt", "GET /f/y.txt"]
--- error_code eval
[200, 200]
--- response_body eval
["first\n", "second\n"]
--- no_error_log
[error]



=== a start that fails
--- bare
--- http_config
    init_by_lua_block { error("not today") }
--- config
--- must_die
--- error_log
not today



=== code before the request
--- bare
--- config
    location /t { content_by_lua_block { ngx.print("t") } }
--- init
main::pass("init runs") if -s "$ENV{TEST_NGINX_SERVER_ROOT}/logs/nginx.pid";
--- request
GET /t
--- response_body: t
--- no_error_log
[error]



=== an answer is cut off when the connection closes without one
--- bare
--- config
    location /t { content_by_lua_block { ngx.exit(444) } }
--- request
GET /t
--- error_code:
--- no_error_log
[error]
