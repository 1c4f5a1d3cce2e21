-- The whole interface: what CONTRACT section 2 of the README lists.
--
-- Thin on purpose: hand over the request, one call, act on the result.
-- The way of a request goes on in src/ffi/access.rs.

local ffi = require "ffi"
local process = require "ngx.process"
local base = require "resty.core.base"
local library = require "resty.sluice.library"
local nginx = require "resty.sluice.nginx"
local bridge = require "resty.sluice.bridge"


local C = library.C
local control = library.module
local ffi_new = ffi.new
local ffi_string = ffi.string
local get_request = base.get_request
local concat = table.concat
local error = error
local ngx = ngx
local exec = ngx.exec
local exit = ngx.exit
local get_phase = ngx.get_phase
local log = ngx.log
local pairs = pairs
local print = ngx.print
local read_body = ngx.req.read_body
local tostring = tostring
local type = type
local wait = bridge.wait


-- sluice_answer_t.action, as in src/ffi/abi.rs.
local PROCEED, WAIT, REFUSE, FAULT, DIVERT, READ = 0, 1, 2, 3, 4, 5
-- Its status, with PROCEED: an earlier call of this request has declined.
local DECLINED = 1
-- sluice_options_t.given
local USER, RAISE, COST, RULES, POOL, DECLINE = 1, 2, 4, 8, 16, 32
local OPTIONS = {
    user = true,
    raise = true,
    cost = true,
    rules = true,
    pool = true,
    decline = true,
}
local CLOSE = 444
-- src/ffi/abi.rs
local WRONG_PHASE = -4


local _M = {
    _VERSION = library._VERSION,
}


local answer = ffi_new("sluice_answer_t")
local options = ffi_new("sluice_options_t")
-- Filled in by setup(): may the library call nginx itself?
local direct = true
-- Filled in by start(): does nginx say when a backend has done its part?
local filtering = false


-- setup() -------------------------------------------------------------------


-- Reads the configuration and makes or finds the shared memory. Raises an
-- error that names source, field and reason.
function _M.setup(source)
    local kind = type(source)
    if kind ~= "string" and kind ~= "table" then
        error("sluice: setup() takes the path of a .toml or .json file, or a "
              .. "table, not " .. (kind == "nil" and "nothing" or "a "
              .. kind), 2)
    end

    local phase = get_phase()
    if phase ~= "init" then
        error("sluice: setup() belongs into init_by_lua_block, not into the "
              .. "phase " .. phase, 2)
    end

    local warnings, err = control.setup(source)
    if not warnings then
        error(err, 0)
    end

    for i = 1, #warnings do
        log(ngx.WARN, warnings[i])
    end

    local same, difference = nginx.compare(nginx.expected)
    direct = same and C.sluice_direct(1) == 0
    if not direct then
        C.sluice_direct(0)
        log(ngx.WARN, "sluice: requests are read through ngx.var, which is ",
            "slower: ", difference or "nginx does not show its functions")
    end

    return true
end


-- start() -------------------------------------------------------------------


-- Attaches this worker and starts its thread.
function _M.start()
    local phase = get_phase()
    if phase ~= "init_worker" then
        return nil, "sluice: start() belongs into init_worker_by_lua_block, "
                    .. "not into the phase " .. phase
    end

    -- OpenResty runs init_worker there too. It serves no request, and as root
    -- it would publish lists that the workers may not read.
    if process.type() == "privileged agent" then
        return true
    end

    local ok, err = control.start()
    if not ok then
        log(ngx.ERR, err)
        return nil, err
    end

    -- Once for each configuration, which has a Lua of its own.
    if direct and not filtering then
        filtering = C.sluice_filter() == 0
    end

    bridge.start()
    return true
end


-- access() ------------------------------------------------------------------


local anchor_rules


local function wrong_option(name, want, got)
    control.complain("access{ " .. name .. " } must be " .. want .. ", not "
                     .. (type(got) == "string" and '"' .. got .. '"'
                         or tostring(got)) .. "; the option is ignored")
end


local function set_bytes(bytes, value)
    bytes.data = value
    bytes.len = #value
end


-- A name that is no option is a slip of the caller's code, the same in every
-- call, so not every call is looked at: going over a table is not compiled.
local function look_for_slips(opts)
    for name in pairs(opts) do
        if not OPTIONS[name] then
            control.complain("access{ " .. tostring(name) .. " } is no option; "
                             .. "there are user, raise, cost, rules, pool and "
                             .. "decline")
        end
    end
end


local calls = 0


-- What is not of the right type is ignored with a line; the rest is checked
-- where it is used.
local function fill(opts)
    local given = 0

    calls = calls + 1
    if calls <= 100 or calls % 256 == 0 then
        look_for_slips(opts)
    end

    local user = opts.user
    if user ~= nil then
        if type(user) == "string" then
            set_bytes(options.user, user)
            given = given + USER
        else
            wrong_option("user", "a string", user)
        end
    end

    local raise = opts.raise
    if raise ~= nil then
        if type(raise) == "number" and raise % 1 == 0 and raise >= -1000
           and raise <= 1000
        then
            options.raise = raise
            given = given + RAISE
        else
            wrong_option("raise", "a whole number", raise)
        end
    end

    local cost = opts.cost
    if cost ~= nil then
        if type(cost) == "number" then
            options.cost = cost
            given = given + COST
        else
            wrong_option("cost", "a whole number, 1 or more", cost)
        end
    end

    local rules = opts.rules
    if rules ~= nil then
        local ok = type(rules) == "table"
        if ok then
            for i = 1, #rules do
                ok = ok and type(rules[i]) == "string"
            end
        end
        if ok then
            anchor_rules = concat(rules, "\0")
            set_bytes(options.rules, anchor_rules)
            given = given + RULES
        else
            wrong_option("rules", "a list of rule names", rules)
        end
    end

    local pool = opts.pool
    if pool ~= nil then
        if type(pool) == "string" then
            set_bytes(options.pool, pool)
            given = given + POOL
        else
            wrong_option("pool", "the name of a pool", pool)
        end
    end

    if opts.decline then
        given = given + DECLINE
    end

    options.given = given
    return options
end


-- LuaJIT compiles nothing that yields, and so neither act() nor access() where
-- requests wait. Interpreted, a call of C and a look at what it answers are
-- slow, so both stand in functions of their own, which are compiled.
local function decide(r, given)
    local rc
    if direct then
        rc = C.sluice_access(r, given, answer)
    else
        rc = nginx.access(given, answer)
    end
    return rc, answer.action, answer.message_len, answer.status
end


-- Also whether there is something to say().
local function ask_access(timed_out, r, ticket, generation)
    if direct then
        C.sluice_resume(r, ticket, generation, timed_out, answer)
    else
        nginx.resume(r, ticket, generation, timed_out, answer)
    end
    return answer.action, answer.seconds, answer.message_len
end


-- What a wait is for, and for how long.
local function awaited()
    return answer.ticket, answer.generation, answer.seconds
end


-- The operator's files for whom a pool sheds, by their number. A file that
-- changes gets another, so there are few.
local files = {}
local files_count = 0


local function degraded(number)
    local body = files[number]
    if not body then
        body = control.file(number)
        if body then
            if files_count >= 64 then
                files, files_count = {}, 0
            end
            files[number] = body
            files_count = files_count + 1
        end
    end
    return body
end


-- Ends a refused request: the fields are set already.
local function refuse()
    local status = answer.status
    local len = answer.body_len

    if status == CLOSE then
        return exit(CLOSE)
    end

    if answer.file ~= 0 then
        local body = degraded(answer.file)
        if body then
            ngx.status = status
            print(body)
            return exit(ngx.HTTP_OK)
        end
        return exit(status)
    end

    if len == 0 then
        return exit(status)
    end

    -- Read before anything that yields.
    local body = ffi_string(answer.body, len)
    ngx.status = status
    print(body)
    return exit(ngx.HTTP_OK)
end


local function say()
    log(ngx.ERR, ffi_string(answer.message, answer.message_len))
end


-- Everything but the plain admission.
local function act(action, message_len, r, decline)
    if message_len > 0 then
        say()
    end

    local _
    while action == WAIT or action == READ do
        -- Read before anything that yields.
        local ticket, generation, seconds = awaited()
        if action == READ then
            read_body()
            action, _, message_len = ask_access(1, r, ticket, generation)
        else
            action, message_len = wait(ticket, seconds, WAIT, ask_access, r,
                                       ticket, generation)
        end
        if message_len > 0 then
            say()
        end
    end

    if action == REFUSE then
        return refuse()
    end

    if action == DIVERT then
        return exec(ffi_string(answer.body, answer.body_len))
    end

    if decline then
        return exit(ngx.DECLINED)
    end
end


local function wrong_phase()
    local err = "access() decides in the rewrite and access phases only, not "
                .. "in " .. get_phase() .. "; the request passes undecided"
    control.complain(err)
    return nil, "sluice: " .. err
end


-- Decides this request; ends it when it is refused.
function _M.access(opts)
    local r = get_request()
    if not r then
        return nil, "sluice: access() needs a request"
    end

    local given, decline
    if opts ~= nil then
        if type(opts) == "table" then
            given = fill(opts)
            decline = opts.decline
        else
            control.complain("access() takes a table of options, not a "
                             .. type(opts) .. "; it is ignored")
        end
    end

    local rc, action, message_len, status = decide(r, given)

    if rc == WRONG_PHASE then
        return wrong_phase()
    end

    if action == PROCEED and not decline and message_len == 0
       and status ~= DECLINED
    then
        return
    end

    return act(action, message_len, r, decline or status == DECLINED)
end


-- log(), header() -----------------------------------------------------------


-- Counts the answer of this request.
function _M.log()
    local r = get_request()
    if not r then
        return
    end
    if direct then
        C.sluice_log(r)
    else
        nginx.log(r)
    end
end


-- Only for pools that give a slot back at the response's header.
function _M.header()
    local r = get_request()
    if not r then
        return
    end
    if direct then
        C.sluice_header(r)
    else
        nginx.header(r)
    end
end


-- check(), ban(), unban() ---------------------------------------------------


local function outcome()
    local action = answer.action
    if action == PROCEED then
        return true, answer.remaining
    end
    if action == REFUSE then
        return false, answer.remaining
    end
    return nil, ffi_string(answer.message, answer.message_len)
end


local function ask_check(timed_out, ticket, generation)
    C.sluice_check_resume(ticket, generation, timed_out, answer)
    return answer.action, answer.seconds
end


local function ask_ban(timed_out, ticket, generation)
    C.sluice_ban_resume(ticket, generation, timed_out, answer)
    return answer.action, answer.seconds
end


local YIELDS = {
    rewrite = true,
    access = true,
    content = true,
    timer = true,
    ssl_cert = true,
    ssl_session_fetch = true,
    ssl_client_hello = true,
}


local function can_wait()
    if YIELDS[get_phase()] then
        return true
    end
    return nil
end


-- One named rule for a key of the caller's: true, remaining; false,
-- retry_after in seconds; nil, err.
function _M.check(rule, key, cost)
    if type(rule) ~= "string" then
        return nil, "sluice: check(): rule must be a string, not a "
                    .. type(rule)
    end
    if type(key) ~= "string" then
        return nil, "sluice: check(): key must be a string, not a "
                    .. type(key)
    end
    if cost ~= nil and type(cost) ~= "number" then
        return nil, "sluice: check(): cost must be a number, not a "
                    .. type(cost)
    end
    -- The library takes 0 for "the rule's own".
    if cost == 0 then
        return nil, "sluice: check(): the cost must be a whole number from 1, "
                    .. "not 0"
    end
    if not can_wait() then
        return nil, "sluice: check() cannot be used in the phase "
                    .. get_phase()
    end

    C.sluice_check(rule, #rule, key, #key, cost or 0, answer)

    if answer.action == WAIT then
        wait(answer.ticket, answer.seconds, WAIT, ask_check, answer.ticket,
             answer.generation)
    end
    return outcome()
end


local function ban_outcome(what)
    if answer.action == WAIT then
        wait(answer.ticket, answer.seconds, WAIT, ask_ban, answer.ticket,
             answer.generation)
    end
    if answer.action == PROCEED then
        return true
    end
    if answer.action == FAULT then
        return nil, ffi_string(answer.message, answer.message_len)
    end
    return nil, "sluice: " .. what .. " was not answered"
end


-- Blocks an address, network or "user:<id>" for so many seconds, or for ever.
function _M.ban(subject, seconds)
    if type(subject) ~= "string" then
        return nil, "sluice: ban(): the subject must be a string, not a "
                    .. type(subject)
    end
    if seconds ~= nil and type(seconds) ~= "number" then
        return nil, "sluice: ban(): seconds must be a number or nil, not a "
                    .. type(seconds)
    end
    -- Neither is NaN.
    if seconds ~= nil and (seconds <= 0 or seconds ~= seconds) then
        return nil, "sluice: ban(): seconds must be above 0 and at most ten "
                    .. "years, or nil for ever, not " .. seconds
    end
    if not can_wait() then
        return nil, "sluice: ban() cannot be used in the phase "
                    .. get_phase()
    end

    -- -1: for ever.
    C.sluice_ban(subject, #subject, seconds or -1, answer)
    return ban_outcome("ban()")
end


-- Ends a ban made with ban(); the operator's lists are not touched.
function _M.unban(subject)
    if type(subject) ~= "string" then
        return nil, "sluice: unban(): the subject must be a string, not a "
                    .. type(subject)
    end
    if not can_wait() then
        return nil, "sluice: unban() cannot be used in the phase "
                    .. get_phase()
    end

    C.sluice_unban(subject, #subject, answer)
    return ban_outcome("unban()")
end


-- metrics(), status() -------------------------------------------------------


local function page(content_type, text, err)
    if get_phase() ~= "content" then
        return text, err
    end

    ngx.header["Cache-Control"] = "no-store"
    if not text then
        ngx.status = 500
        ngx.header["Content-Type"] = "text/plain; charset=utf-8"
        print(err, "\n")
        return
    end
    ngx.header["Content-Type"] = content_type
    ngx.header["Content-Length"] = #text
    print(text)
end


-- Prometheus text.
function _M.metrics()
    return page("text/plain; version=0.0.4; charset=utf-8", control.metrics())
end


-- The state of this gateway as JSON.
function _M.status()
    return page("application/json", control.status())
end


return _M
