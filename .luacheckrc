std = "ngx_lua"
max_line_length = 80
codes = true
-- wrk calls it.
files["benches/gateway/wrk.lua"] = { globals = { "done" } }
