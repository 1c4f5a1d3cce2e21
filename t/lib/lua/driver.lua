-- Runs a case's `driver` section inside nginx: it sends requests to the same
-- server over loopback sockets and what it says becomes the answer's body.
--
--   GET(path, from?, fields?)         POST(path, body?, from?, fields?)
--   send { method, path, from, headers, body, host, lines }
--       → { status, headers, body, verdict, rule, level, client }
--       `from` is the client's address (X-Forwarded-For; false: no field);
--       `lines` are header lines sent as they are
--   show(answer, field...)            says status, verdict, the rule of a
--                                     refusal, and these fields
--   many(n, function)                 "5 x 200 pass, 3 x 429 limited"
--   say(...), sleep(s), redis(...)    redis: one command, errors as nil, text
--   within(s, function)               asks every 50 ms until it is true
--   metrics()                         "name{label=\"v\"}" → number
--   status()                          the JSON as tables
--   open()                            a connection kept open: c:send(text),
--                                     c:answer(method?), c:close()
-- and for pools, beside the section `backend` (its module is `backend`):
--   start { … }                       sends, does not wait; `user` is X-User
--   finish(started)                   its answer
--   hold(n, key, { … })               starts n requests that the backend works
--                                     on until release(key, n); list of started
--   queue(n, key, { … })              the same for requests that have to wait
--   pool(name?)                       of status(); `queued` is the sum of
--                                     `waiting`. Without a name: the first
local _M = {}

local tcp = ngx.socket.tcp
local concat = table.concat

local conf
local out


local function say(...)
    local n = select("#", ...)
    local parts = {}
    for i = 1, n do
        parts[i] = tostring((select(i, ...)))
    end
    out[#out + 1] = concat(parts, " ") .. "\n"
end


local function read_answer(sock, method)
    local line, err = sock:receive()
    if not line then
        return nil, err
    end
    local status = tonumber(line:match("^HTTP/%S+ (%d+)"))
    local headers = {}
    while true do
        local field = sock:receive()
        if not field then
            return nil, "headers cut short"
        end
        if field == "" then
            break
        end
        local key, value = field:match("^([^:]+):%s*(.-)%s*$")
        key = key:lower()
        headers[key] = headers[key] and headers[key] .. ", " .. value or value
    end
    if status == 100 then
        return read_answer(sock, method)
    end

    local body
    if method == "HEAD" or status == 204 or status == 304 then
        -- Whatever follows is the next answer.
        body = ""
    elseif headers["transfer-encoding"] == "chunked" then
        local parts = {}
        while true do
            local size = tonumber((sock:receive() or ""):match("^%x+"), 16)
            if not size then
                return nil, "bad chunk"
            end
            if size > 0 then
                parts[#parts + 1] = sock:receive(size)
            end
            sock:receive()
            if size == 0 then
                break
            end
        end
        body = concat(parts)
    elseif headers["content-length"] then
        body = sock:receive(tonumber(headers["content-length"]))
    else
        body = sock:receive("*a")
    end

    return {
        status = status,
        headers = headers,
        body = body,
        verdict = headers["x-verdict"] or "-",
        rule = headers["x-rule"] or "-",
        level = headers["x-level"] or "-",
        client = headers["x-client"] or "-",
    }
end


local function connect()
    local sock = tcp()
    sock:settimeouts(5000, 10000, 20000)
    local ok, err
    if conf.socket then
        ok, err = sock:connect(conf.socket)
    else
        ok, err = sock:connect("127.0.0.1", conf.port)
    end
    if not ok then
        error("cannot connect: " .. tostring(err), 3)
    end
    return sock
end


local function open()
    local sock = connect()
    return {
        send = function(_, text)
            return sock:send(text)
        end,
        answer = function(_, method)
            return read_answer(sock, method)
        end,
        close = function()
            sock:close()
        end,
    }
end


local function request_text(req, connection)
    local lines = {
        (req.method or "GET") .. " " .. req.path .. " HTTP/1.1",
        "Host: " .. (req.host or "localhost"),
        "Connection: " .. connection,
    }
    if req.from ~= false then
        lines[#lines + 1] = "X-Forwarded-For: " .. (req.from or "198.51.100.1")
    end
    for key, value in pairs(req.headers or {}) do
        lines[#lines + 1] = key .. ": " .. value
    end
    for _, line in ipairs(req.lines or {}) do
        lines[#lines + 1] = line
    end
    if req.user then
        lines[#lines + 1] = "X-User: " .. req.user
    end
    if req.body then
        lines[#lines + 1] = "Content-Length: " .. #req.body
    end
    return concat(lines, "\r\n") .. "\r\n\r\n" .. (req.body or "")
end


local function send(req)
    local sock = connect()
    local ok, err = sock:send(request_text(req, "close"))
    if not ok then
        return { status = 0, err = err, headers = {}, body = "",
                 verdict = "-", rule = "-", level = "-", client = "-" }
    end
    local answer
    answer, err = read_answer(sock, req.method)
    sock:close()
    return answer or { status = 0, err = err, headers = {}, body = "",
                       verdict = "-", rule = "-", level = "-", client = "-" }
end


local function GET(path, from, headers)
    return send { path = path, from = from, headers = headers }
end


local function POST(path, body, from, headers)
    return send { method = "POST", path = path, body = body or "", from = from,
                  headers = headers }
end


local function show(answer, ...)
    local parts = { answer.status, answer.verdict }
    if answer.rule ~= "-" and answer.verdict ~= "pass" then
        parts[3] = answer.rule
    end
    for i = 1, select("#", ...) do
        local key = select(i, ...)
        parts[#parts + 1] = answer.headers[key] or "none"
    end
    say(unpack(parts))
end


-- Answers of n calls, counted, in the order in which each kind first came.
local function many(n, call)
    local order, counts = {}, {}
    for i = 1, n do
        local answer = call(i)
        local kind = answer.status .. " " .. answer.verdict
        if not counts[kind] then
            order[#order + 1] = kind
            counts[kind] = 0
        end
        counts[kind] = counts[kind] + 1
    end
    for i, kind in ipairs(order) do
        order[i] = counts[kind] .. " x " .. kind
    end
    say(concat(order, ", "))
end


local function within(seconds, call)
    local start = ngx.now()
    repeat
        if call() then
            return true
        end
        ngx.sleep(0.05)
        ngx.update_time()
    until ngx.now() - start > seconds
    return false
end


local threads = {}


local function start(req)
    local thread = ngx.thread.spawn(send, req)
    threads[#threads + 1] = thread
    return thread
end


local function finish(started)
    local ok, answer = ngx.thread.wait(started)
    return ok and answer or { status = 0, headers = {}, body = "",
                              verdict = "-", rule = "-", level = "-",
                              client = "-" }
end


local function redis_answer(sock)
    local line, err = sock:receive()
    if not line then
        return nil, err
    end
    local kind, rest = line:sub(1, 1), line:sub(2)
    if kind == "$" then
        local size = tonumber(rest)
        if size < 0 then
            return nil
        end
        local bytes = sock:receive(size)
        sock:receive(2)
        return bytes
    elseif kind == "*" then
        local list = {}
        for i = 1, tonumber(rest) do
            list[i] = redis_answer(sock)
        end
        return list
    elseif kind == ":" then
        return tonumber(rest)
    elseif kind == "-" then
        return nil, rest
    end
    return rest
end


local function redis(...)
    local sock = tcp()
    sock:settimeout(5000)
    local ok, err = sock:connect("127.0.0.1", conf.redis)
    if not ok then
        return nil, err
    end
    local parts = { "*" .. select("#", ...) .. "\r\n" }
    for i = 1, select("#", ...) do
        local word = tostring((select(i, ...)))
        parts[#parts + 1] = "$" .. #word .. "\r\n" .. word .. "\r\n"
    end
    sock:send(concat(parts))
    local answer
    answer, err = redis_answer(sock)
    sock:close()
    if err then
        return nil, err
    end
    return answer
end


local function metrics()
    local body = send({ path = "/metrics", from = false }).body
    local found = {}
    for line in body:gmatch("[^\n]+") do
        if line:sub(1, 1) ~= "#" then
            local series, value = line:match("^(.+) ([^ ]+)$")
            if not series then
                error("not a sample: " .. line)
            end
            found[series] = tonumber(value)
        end
    end
    return found, body
end


-- JSON, as much of it as status() writes.
local function decode(text)
    local at = 1
    local value

    local function skip()
        at = text:find("[^ \t\r\n]", at) or #text + 1
    end

    local function fail(what)
        error("JSON: " .. what .. " at byte " .. at)
    end

    local function str()
        local from = at + 1
        local stop = from
        while true do
            stop = text:find('["\\]', stop) or fail("open string")
            if text:sub(stop, stop) == '"' then
                break
            end
            stop = stop + 2
        end
        at = stop + 1
        return (text:sub(from, stop - 1):gsub("\\(.)", {
            n = "\n", t = "\t", r = "\r", ['"'] = '"', ["\\"] = "\\",
            ["/"] = "/",
        }))
    end

    function value()
        skip()
        local c = text:sub(at, at)
        if c == "{" or c == "[" then
            local close = c == "{" and "}" or "]"
            local found = {}
            at = at + 1
            skip()
            if text:sub(at, at) == close then
                at = at + 1
                return found
            end
            while true do
                skip()
                local key = #found + 1
                if c == "{" then
                    key = str()
                    skip()
                    if text:sub(at, at) ~= ":" then
                        fail("no colon")
                    end
                    at = at + 1
                end
                found[key] = value()
                skip()
                local mark = text:sub(at, at)
                at = at + 1
                if mark == close then
                    return found
                elseif mark ~= "," then
                    fail("no comma")
                end
            end
        elseif c == '"' then
            return str()
        end
        local word = text:match("^[%w%+%-%.]+", at) or fail("no value")
        at = at + #word
        if word == "true" then
            return true
        elseif word == "false" then
            return false
        elseif word == "null" then
            return ngx.null
        end
        return tonumber(word) or fail("no number")
    end

    local found = value()
    skip()
    if at <= #text then
        fail("something behind the value")
    end
    return found
end


local function status()
    return decode(send({ path = "/status", from = false }).body)
end


local function pool(name)
    for _, found in ipairs(status().pools or {}) do
        if not name or found.name == name then
            found.queued = 0
            for _, n in ipairs(found.waiting) do
                found.queued = found.queued + n
            end
            return found
        end
    end
    -- Compares with anything, and is equal to nothing.
    return { name = "no pool " .. tostring(name), in_flight = -1, queued = -1,
             limit = -1, waiting = {} }
end


local function start_many(n, key, req)
    local started = {}
    for i = 1, n do
        local mine = {}
        for field, value in pairs(req or {}) do
            mine[field] = value
        end
        local path = mine.path or "/b/x"
        mine.path = path .. (path:find("?", 1, true) and "&" or "?") .. "hold="
                    .. key
        -- More than a user may have at level 0 are nobody's concern here.
        mine.user = mine.user and mine.user:gsub("#", i)
        started[i] = start(mine)
    end
    return started
end


local function hold(n, key, req)
    local backend = require "backend"
    local before = backend.counts()
    local started = start_many(n, key, req)
    if not within(5, function() return backend.counts() >= before + n end) then
        error("the backend has " .. backend.counts() .. " requests", 2)
    end
    return started
end


local function queue(n, key, req)
    local before = pool(req and req.pool).queued
    local started = start_many(n, key, req)
    if not within(5, function()
        return pool(req and req.pool).queued >= before + n
    end) then
        error(pool(req and req.pool).queued .. " requests wait", 2)
    end
    return started
end


function _M.run(path, options)
    conf = options
    out = {}
    local code, err = loadfile(path)
    if code then
        local env = setmetatable({
            say = say, show = show, many = many, send = send, GET = GET,
            POST = POST, sleep = ngx.sleep, within = within, redis = redis,
            metrics = metrics, status = status, decode = decode, open = open,
            request_text = request_text, conf = conf,
            start = start, finish = finish, hold = hold, queue = queue,
            pool = pool, release = require("backend").release,
            backend = require("backend"), sluice = require("resty.sluice"),
        }, { __index = _G })
        setfenv(code, env)
        local ok
        ok, err = xpcall(code, debug.traceback)
        if ok then
            err = nil
        end
    end
    if err then
        out[#out + 1] = "driver: " .. tostring(err) .. "\n"
    end
    -- What a case has not ended must not keep its answer.
    for _, thread in ipairs(threads) do
        ngx.thread.kill(thread)
    end
    require("backend").release_all()
    ngx.print(out)
end


return _M
