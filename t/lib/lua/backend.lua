-- A backend that does as it is told, for tests of pools. One worker process
-- has all of its state. What the arguments of a request to serve() say:
--
--   hold=KEY     works until KEY is released
--   s=SECONDS    works for so long
--   id=TEXT      is noted when it comes, in that order
--   status=N, size=BYTES, chunked=1, header=1 (sends its header first)
--   stream=1     an event stream, ws=1 a WebSocket's connection (an echo)
--                until the client closes it
--
-- It works on when its client leaves, as most backends do.
local _M = {}

local semaphore = require "ngx.semaphore"
local ffi = require "ffi"
local tonumber = tonumber

pcall(ffi.cdef, [[
    typedef struct { long sec, nsec; } sluice_test_time_t;
    int clock_gettime(int clock, sluice_test_time_t *time);
]])
local time = ffi.new("sluice_test_time_t")

local holds = {}
local at_work, peak, total = 0, 0, 0
local ids = {}


-- Seconds of the monotonic clock, to the microsecond.
function _M.clock()
    ffi.C.clock_gettime(1, time)
    return tonumber(time.sec) + tonumber(time.nsec) / 1e9
end


local function semaphore_of(key)
    holds[key] = holds[key] or semaphore.new()
    return holds[key]
end


-- Lets n requests with that key end; the first that came first.
function _M.release(key, n)
    semaphore_of(key):post(n or 1)
end


-- Nothing is held from here on, of what there has been.
function _M.release_all()
    for _, sem in pairs(holds) do
        sem:post(10000)
    end
end


-- Requests at work, the most there were, how many came.
function _M.counts()
    return at_work, peak, total
end


-- The ids of the requests that came, in that order.
function _M.ids()
    return ids
end


function _M.reset()
    peak, total, ids = at_work, 0, {}
end


local function stream()
    ngx.header["Content-Type"] = "text/event-stream"
    ngx.header["X-Accel-Buffering"] = "no"
    local n = 0
    repeat
        n = n + 1
        ngx.print("data: ", n, "\n\n")
        local ok = ngx.flush(true)
        ngx.sleep(0.2)
    until not ok
end


local function websocket()
    ngx.status = 101
    ngx.header["Upgrade"] = "websocket"
    ngx.header["Connection"] = "Upgrade"
    ngx.send_headers()
    ngx.flush(true)
    local sock = ngx.req.socket(true)
    sock:settimeout(120000)
    while true do
        local data = sock:receive(1)
        if not data or not sock:send(data) then
            return
        end
    end
end


function _M.serve()
    local arg = ngx.req.get_uri_args()
    at_work, total = at_work + 1, total + 1
    if at_work > peak then
        peak = at_work
    end
    if arg.id then
        ids[#ids + 1] = arg.id
    end
    ngx.req.read_body()

    if arg.ws or arg.stream then
        if arg.ws then
            websocket()
        else
            stream()
        end
        at_work = at_work - 1
        return
    end

    ngx.status = tonumber(arg.status) or 200
    if arg.header then
        ngx.header["X-Accel-Buffering"] = "no"
        ngx.send_headers()
        ngx.flush(true)
    end
    if arg.hold then
        semaphore_of(arg.hold):wait(120)
    end
    if arg.s then
        ngx.sleep(tonumber(arg.s))
    end
    -- Before the answer: what it brings about at the gateway comes after.
    at_work = at_work - 1

    if ngx.status == 204 or ngx.status == 304 then
        return ngx.exit(ngx.status)
    end
    local body = ("x"):rep(tonumber(arg.size) or 0) .. "ok\n"
    if not arg.chunked and not arg.header then
        ngx.header["Content-Length"] = #body
    end
    ngx.print(body)
end


-- /release?key=…&n=…, /counts, /ids, /reset over HTTP, for other processes.
function _M.control()
    local arg = ngx.req.get_uri_args()
    local what = ngx.var.uri
    if what == "/release" then
        _M.release(arg.key, tonumber(arg.n))
    elseif what == "/reset" then
        _M.reset()
    elseif what == "/ids" then
        ngx.print(table.concat(ids, "\n"))
    elseif what == "/counts" then
        ngx.print(at_work, " ", peak, " ", total)
    end
end


return _M
